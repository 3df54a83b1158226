"""Stacks that ranks left behind themselves: the text that Python's faulthandler writes at a fatal signal.

The files are foreign input: they may be cut anywhere (the process was dying) or hold anything.  What does not fit is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from desync.model import Frame, RankStacks, Stack

SOURCE = "faulthandler"
MAX_BYTES = 1 << 20
MAX_THREADS = 256
MAX_FRAMES = 512
MAX_NAME = 200

_FATAL = re.compile(r"^(?:Fatal Python error|Windows fatal exception): (.{1,300})")
_THREAD = re.compile(
    r"^(?:Current thread|Thread|Stack)(?: 0x([0-9a-fA-F]{1,16}))?(?: \[(.{1,100})\])? \(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(.{0,4096})", line (\d{1,9}|\?\?\?) in (.{1,1000})$')
_FILE_NAME = re.compile(r"a(\d{1,9})\.(.{1,255})\.(\d{1,9})\.fault")


@dataclass(frozen=True, slots=True)
class Fault:
    """What one faulthandler file says: the threads of its first dump, and the words for the fatal signal, if any."""

    threads: tuple[Stack, ...]
    fatal: str | None = None


@dataclass(frozen=True, slots=True)
class FaultStacks:
    """What the ranks of one attempt left: their stacks by rank, and fatal errors by rank."""

    stacks: tuple[RankStacks, ...] = ()
    fatal: Mapping[int, str] = field(default_factory=dict)


def parse(text: str) -> Fault:
    """The first dump in the text: later ones show only how the process fell apart."""
    fatal: str | None = None
    threads: list[tuple[str, list[Frame]]] = []
    seen: set[str] = set()
    for line in text.splitlines():
        if match := _FATAL.match(line):
            if threads:
                break
            fatal = match[1].strip()
        elif match := _THREAD.match(line):
            identity = match[1] or "the only thread"
            if identity in seen or len(threads) == MAX_THREADS:
                break
            seen.add(identity)
            threads.append((match[2] or f"thread 0x{identity.lstrip('0')}" if match[1] else "thread", []))
        elif threads and (match := _FRAME.match(line)) and len(threads[-1][1]) < MAX_FRAMES:
            threads[-1][1].append(_frame(match))
    return Fault(tuple(_stacks(threads)), fatal)


def _frame(match: re.Match[str]) -> Frame:
    return Frame(function=match[3][:MAX_NAME], file=match[1], line=int(match[2]) if match[2].isdigit() else 0)


def _stacks(threads: list[tuple[str, list[Frame]]]) -> Iterator[Stack]:
    """The main thread first; it is the one that began in a module."""
    named = [("MainThread" if _is_main(frames) else name, frames) for name, frames in threads if frames]
    for name, frames in sorted(named, key=lambda thread: thread[0] != "MainThread"):
        yield Stack(thread=name, frames=tuple(frames))


def _is_main(frames: list[Frame]) -> bool:
    # The outermost frame of every other thread is threading's bootstrap.
    return frames[-1].function == "<module>" or frames[-1].function == "_run_module_as_main"


def read_folder(folder: Path, attempt: int, ranks: Mapping[tuple[str, int], int]) -> FaultStacks:
    """What the processes ``ranks`` (node and pid to rank) of an attempt left in a run's ``stacks`` folder."""
    stacks: list[RankStacks] = []
    fatal: dict[int, str] = {}
    for path in sorted(folder.glob(f"a{attempt}.*.fault")):
        name = _FILE_NAME.fullmatch(path.name)
        rank = ranks.get((name[2], int(name[3]))) if name else None
        if rank is None or (loaded := _read(path)) is None:
            continue
        text, changed = loaded
        fault = parse(text)
        if fault.fatal:
            fatal[rank] = fault.fatal
        if fault.threads:
            stacks.append(RankStacks(rank=rank, source=SOURCE, time=changed, threads=fault.threads))
    return FaultStacks(tuple(sorted(stacks, key=lambda stack: stack.rank)), fatal)


def _read(path: Path) -> tuple[str, int] | None:
    """Text and time of last change (ns); None if it cannot be read or is no plain file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace"), os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None
