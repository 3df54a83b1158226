"""The tree of stacks as indented lines: what ranks have in common once, and under it where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from desync.report.frames import cut_frames, is_main
from desync.report.model import MergedStack
from desync.report.stack_tree import Branch, build_trees
from desync.report.text import place, ranks_phrase
from desync.report.view import telling_stacks

MAX_LINES = 60
MAX_DEPTH = 12
"""Of branches; what parts further in is shown at that depth."""


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A line of the tree: ``strong`` for the user's own frames and for sets of ranks."""

    depth: int
    text: str
    strong: bool


def tree_lines(stacks: Sequence[MergedStack], culprits: Sequence[int], root: str) -> list[TreeLine]:
    """The trees of all threads that tell something; files below ``root`` are shown relative to it."""
    shown = [replace(stack, frames=cut_frames(stack.frames)) for stack in telling_stacks(stacks)]
    lines: list[TreeLine] = []
    for tree in build_trees(shown, culprits):
        thread = "" if is_main(tree.thread.replace(" ", "")) else f", thread {tree.thread}"
        for branch in tree.branches:
            lines.extend(_branch(branch, 0, thread, root))
    return lines


def _branch(branch: Branch, depth: int, thread: str, root: str) -> Iterator[TreeLine]:
    yield TreeLine(depth, f"{ranks_phrase(branch.ranks)}{thread}", strong=True)
    for run in branch.runs:
        for frame in run.frames:
            yield TreeLine(depth + 1, place(frame, root), strong=run.user)
    for inner in branch.branches:
        yield from _branch(inner, min(depth + 1, MAX_DEPTH), "", root)
    if branch.left_out:
        yield TreeLine(depth + 1, f"and {branch.left_out} more places", strong=False)
