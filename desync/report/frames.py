"""Whose frames are whose, and equal stacks as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from desync.model import Frame, RankStacks, Stack
from desync.report.model import MergedStack
from desync.report.text import NAME, bounded

MAX_FRAMES = 64
MAX_SHOWN = 8
MAX_STACKS = 256
PATH = 1000
"""Longest file name, in characters."""

_OWN = re.compile(r"(^|/)desync/(recorder|journal)/")


def bounded_frame(frame: Frame) -> Frame:
    """The frame with names of bounded length."""
    if len(frame.function) <= NAME and len(frame.file) <= PATH:
        return frame
    return Frame(bounded(frame.function, NAME), bounded(frame.file, PATH), frame.line)


def is_own(frame: Frame) -> bool:
    """Whether the frame is the recorder's, which stands between the user's code and torch's and explains nothing."""
    return bool(_OWN.search(frame.file))


def user_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Those that are the user's, innermost first."""
    return tuple(frame for frame in frames if frame.is_users)


def cut_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The user's frames, below the innermost Python frame that they led to; the three innermost if none is the user's."""
    own = user_frames(frames)
    if not own:
        return tuple(frames[:3])
    innermost = next((frame for frame in frames if not frame.is_native), own[0])
    head = () if innermost == own[0] else (innermost,)
    return (*head, *own)[:MAX_SHOWN]


def is_main(thread: str) -> bool:
    """Whether the name is that of a process' first thread."""
    return "mainthread" in thread.replace(" ", "").lower()


def main_stack(stacks: RankStacks) -> Stack | None:
    """The main thread's stack; without a thread of that name the first with a user frame, else the first."""
    threads = stacks.threads
    named = [stack for stack in threads if is_main(stack.thread)]
    own = [stack for stack in threads if user_frames(stack.frames)]
    return next(iter([*named, *own, *threads]), None)


def newest(stacks: Iterable[RankStacks]) -> list[RankStacks]:
    """Of several samples of one rank by one source the newest; sorted by rank, py-spy's before others'."""
    best: dict[tuple[int, str], RankStacks] = {}
    for sample in stacks:
        known = best.get((sample.rank, sample.source))
        if known is None or (sample.time or 0) >= (known.time or 0):
            best[sample.rank, sample.source] = sample
    return sorted(best.values(), key=lambda sample: (sample.rank, sample.source != "py-spy", sample.source))


def merge_stacks(stacks: Iterable[RankStacks]) -> tuple[MergedStack, ...]:
    """Equal stacks (of the same source and thread name) as one with its ranks; the ones shared by most ranks first."""
    merged: dict[tuple[str, str, tuple[Frame, ...]], set[int]] = {}
    for sample in newest(stacks):
        for stack in sample.threads:
            key = (sample.source, stack.thread, tuple(map(bounded_frame, stack.frames[:MAX_FRAMES])))
            merged.setdefault(key, set()).add(sample.rank)
    ordered = sorted(merged.items(), key=lambda item: (not is_main(item[0][1]), -len(item[1]), min(item[1])))
    return tuple(
        MergedStack(tuple(sorted(ranks)), bounded(source, NAME), bounded(thread, NAME), frames)
        for (source, thread, frames), ranks in ordered[:MAX_STACKS]
    )
