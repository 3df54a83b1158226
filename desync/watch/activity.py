"""Whether a rank's process moves, seen from outside while others wait for it.

A rank's work is also that of its descendants: one that waits for its data loader's workers moves as long as they do.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

import psutil

from desync.model import Activity, Motion
from desync.watch.threads import main_clock

WINDOW_NS = 1_000_000_000
"""Motion is judged over at least this long: a shorter look mistakes a pause for a standstill."""
CPU_SHARE = 0.02
"""Of the window; a rank that only polls or sends heartbeats uses less."""
IO_BYTES_PER_S = 4096
"""A heartbeat or a log line is no progress."""
MAX_SAMPLES = 256
MAX_STACKS = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a rank: CPU seconds and bytes are counted from any fixed point; None is not known."""

    time: int
    state: str | None
    cpu_s: float | None = None
    io_bytes: int | None = None
    records: int = 0
    """The newest record of its journal."""
    stack: Hashable = None
    """Something that is equal for equal stacks; None if none was taken."""
    turns: int | None = None
    """How often its main thread was given a core so far."""


class ProcessSampler:
    """Adds up what a process and its descendants use from the first look on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._last: dict[tuple[int, float], tuple[float, int]] = {}
        self._first = True
        self._cpu = 0.0
        self._io = 0

    def sample(self, now: int, records: int, stack: Hashable = None) -> Sample:
        """Look at the process now; a process that is gone gives a sample without numbers."""
        try:
            process = psutil.Process(self.pid)
            state = process.status()
            family = [process, *process.children(recursive=True)]
        except psutil.Error:
            return Sample(now, None, records=records, stack=stack)
        for member in family:
            with contextlib.suppress(psutil.Error):
                self._add(member)
        self._first = False
        clock = main_clock(self.pid)
        return Sample(now, state, self._cpu, self._io, records, stack, clock.turns if clock is not None else None)

    def _add(self, member: psutil.Process) -> None:
        key = (member.pid, member.create_time())
        times = member.cpu_times()
        used = (times.user + times.system, _io_bytes(member))
        cpu, io = self._last.get(key, used if self._first else (0.0, 0))
        self._cpu += max(0.0, used[0] - cpu)
        self._io += max(0, used[1] - io)
        self._last[key] = used


def _io_bytes(process: psutil.Process) -> int:
    try:
        counters = process.io_counters()
    except (psutil.Error, OSError, NotImplementedError):
        return 0
    return int(counters.read_chars + counters.write_chars)


class ActivityTracker:
    """Judges one rank from its samples."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._begin: Sample | None = None
        self._moved: Sample | None = None
        self._stacks: set[Hashable] = set()

    def add(self, sample: Sample) -> None:
        """Take the next sample."""
        if self._begin is None:
            self._begin = sample
        if self._samples and self._has_moved(sample):
            self._moved = sample
        if sample.stack is not None and len(self._stacks) < MAX_STACKS:
            self._stacks.add(sample.stack)
        self._samples.append(sample)

    def _has_moved(self, now: Sample) -> bool:
        # A loop that waits shows few stacks again and again; only one that was not seen before is progress.
        new_stack = now.stack is not None and bool(self._stacks) and now.stack not in self._stacks
        if new_stack or now.records != self._samples[-1].records:
            return True
        earlier = next((s for s in reversed(self._samples) if now.time - s.time >= WINDOW_NS), None)
        return earlier is not None and _used_much(earlier, now)

    @property
    def activity(self) -> Activity:
        """What the samples say so far."""
        begin, now = self._begin, self._samples[-1] if self._samples else None
        if begin is None or now is None or now.cpu_s is None:
            return Activity(self.rank, Motion.UNKNOWN, process_state=now.state if now else None)
        since = self._moved or begin
        still = now.time - since.time
        if still >= WINDOW_NS:
            return _activity(self.rank, Motion.FROZEN, since, now)
        return _activity(self.rank, Motion.MOVING if self._moved else Motion.UNKNOWN, begin, now)


def _used_much(earlier: Sample, now: Sample) -> bool:
    seconds = (now.time - earlier.time) / 1e9
    cpu = _difference(earlier.cpu_s, now.cpu_s)
    io = _difference(earlier.io_bytes, now.io_bytes)
    return (cpu or 0) > CPU_SHARE * seconds or (io or 0) > IO_BYTES_PER_S * seconds


def _difference(earlier: float | None, now: float | None) -> float | None:
    return None if earlier is None or now is None else now - earlier


def _activity(rank: int, motion: Motion, since: Sample, now: Sample) -> Activity:
    io = _difference(since.io_bytes, now.io_bytes)
    turns = _difference(since.turns, now.turns)
    return Activity(
        rank=rank,
        motion=motion,
        since=since.time,
        process_state=now.state,
        cpu_s=_difference(since.cpu_s, now.cpu_s),
        io_bytes=None if io is None else int(io),
        wakes=None if turns is None else int(turns),
    )
