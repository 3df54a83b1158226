"""Stacks as a tree from the outermost frame inwards: what ranks have in common is told once, those that differ branch off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from desync.model import Frame
from desync.report.frames import MAX_FRAMES, is_main
from desync.report.model import MergedStack
from desync.report.view import telling_stacks

MAX_BRANCHES = 24
"""At one place; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Run:
    """Frames that follow each other, outermost first: all the user's, or all of libraries."""

    user: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Frames that ``ranks`` share, and where they part after them: outliers (culprits, then small sets) first."""

    ranks: tuple[int, ...]
    runs: tuple[Run, ...]
    branches: tuple[Branch, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ThreadTree:
    """The tree of the threads of one name, from one source."""

    thread: str
    source: str
    branches: tuple[Branch, ...]


@dataclass(slots=True)
class _Node:
    ranks: set[int] = field(default_factory=set)
    children: dict[Frame, _Node] = field(default_factory=dict)
    ends: set[int] = field(default_factory=set)
    """Ranks whose innermost frame this is."""


def build_trees(stacks: Sequence[MergedStack], culprits: Sequence[int]) -> tuple[ThreadTree, ...]:
    """The trees, main threads first."""
    roots: dict[tuple[str, str], _Node] = {}
    for stack in telling_stacks(stacks):
        name = "main thread" if is_main(stack.thread) else stack.thread
        root = roots.setdefault((name, stack.source), _Node())
        _add(root, stack)
    odd = frozenset(culprits)
    ordered = sorted(roots.items(), key=lambda item: (item[0][0] != "main thread", item[0]))
    return tuple(ThreadTree(name, source, _children(root, odd)[0]) for (name, source), root in ordered)


def _add(root: _Node, stack: MergedStack) -> None:
    node = root
    node.ranks.update(stack.ranks)
    # A report that desync did not write may have more, and every frame at which stacks part is a level of the page.
    for frame in reversed(stack.frames[:MAX_FRAMES]):
        node = node.children.setdefault(frame, _Node())
        node.ranks.update(stack.ranks)
    node.ends.update(stack.ranks)


def _children(node: _Node, culprits: frozenset[int]) -> tuple[tuple[Branch, ...], int]:
    ordered = sorted(
        node.children.items(),
        key=lambda item: (not culprits.intersection(item[1].ranks), len(item[1].ranks), min(item[1].ranks)),
    )
    made = tuple(_branch(frame, child, culprits) for frame, child in ordered[:MAX_BRANCHES])
    return made, len(ordered) - len(made)


def _branch(frame: Frame, node: _Node, culprits: frozenset[int]) -> Branch:
    """A branch goes on until its ranks part."""
    frames = [frame]
    while len(node.children) == 1 and not node.ends:
        ((frame, node),) = node.children.items()
        frames.append(frame)
    branches, left_out = _children(node, culprits)
    if node.ends and branches:
        # Some ranks are here, others further in: the former get a branch of their own, without frames.
        branches = (Branch(tuple(sorted(node.ends)), ()), *branches)
    return Branch(tuple(sorted(node.ranks)), _runs(frames), branches, left_out)


def _runs(frames: Sequence[Frame]) -> tuple[Run, ...]:
    runs: list[tuple[bool, list[Frame]]] = []
    for frame in frames:
        user = frame.is_users
        if runs and runs[-1][0] == user:
            runs[-1][1].append(frame)
        else:
            runs.append((user, [frame]))
    return tuple(Run(user, tuple(members)) for user, members in runs)
