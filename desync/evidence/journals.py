"""The journals of one run, followed while the ranks write and read again after their end."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from desync.errors import JournalError
from desync.evidence.loops import loops_of
from desync.journal.reader import JournalReader, Pulse
from desync.model import Activity, Evidence, Exit, Job, RankStacks, Trace

MAX_JOURNALS = 65536
MAX_NOTES = 64
MAX_NOTE = 500

_NAME = re.compile(r"a(\d{1,9})\.(.{1,255})\.(\d{1,9})\.journal")


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process behind a journal: ``started`` in clock ticks since boot, 0 if not known."""

    rank: int
    pid: int
    started: int
    node: str


class JournalFolder:
    """All journals in a run's ``journals`` folder.

    New ones may appear at any time; a file that is not ready, or is none, is looked at again at the next refresh.  The folder
    itself need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, _Journal] = {}
        self._refused: dict[str, str] = {}

    def close(self) -> None:
        """Let go of all files."""
        for journal in self._open.values():
            journal.reader.close()
        self._open.clear()

    def refresh(self) -> None:
        """Look for new journals."""
        try:
            with os.scandir(self.path) as entries:
                new = [entry.name for entry in entries if entry.name not in self._open and _NAME.fullmatch(entry.name)]
        except OSError:
            return
        for name in sorted(new)[: MAX_JOURNALS - len(self._open)]:
            self._try(name)

    def _try(self, name: str) -> None:
        match = _NAME.fullmatch(name)
        if match is None or not (self.path / name).is_file():
            return
        try:
            reader = JournalReader(str(self.path / name))
        except JournalError as error:
            self._refused[name] = error.message
            return
        self._refused.pop(name, None)
        self._open[name] = _Journal(reader, match[2], len(self._open))

    @property
    def attempts(self) -> tuple[int, ...]:
        """Restart counts of which there is a journal whose rank is known, in order."""
        return tuple(sorted({j.reader.attempt for j in self._open.values() if j.reader.rank is not None}))

    def ranks(self, attempt: int | None = None) -> dict[int, RankProcess]:
        """The processes of the newest (or the given) attempt."""
        return {
            rank: RankProcess(rank, journal.reader.pid, journal.reader.process_start, journal.node)
            for rank, journal in self._current(attempt).items()
        }

    def pulses(self, attempt: int | None = None) -> dict[int, Pulse]:
        """A cheap look at each rank of the newest (or the given) attempt."""
        return {rank: journal.reader.pulse() for rank, journal in self._current(attempt).items()}

    def newest_operation(self) -> str | None:
        """The operation that the lowest rank entered last, if it is its newest record."""
        first = next(iter(self._current(None).values()), None)
        return first.reader.newest_operation() if first else None

    def announced(self, attempt: int | None = None) -> dict[int, bool]:
        """Which ranks have said that they end."""
        return {rank: journal.reader.exit_announced for rank, journal in self._current(attempt).items()}

    def _current(self, attempt: int | None) -> dict[int, _Journal]:
        """For each rank its newest journal in the attempt.

        A program that spawns its ranks several times leaves several generations in one attempt; ranks of an older and larger
        one must not be taken for members of the newest.  Nor may a helper that a rank started take the rank's place.
        """
        known = self.attempts
        if not known:
            return {}
        wanted = known[-1] if attempt is None else attempt
        current: dict[int, _Journal] = {}
        journals = [j for j in self._open.values() if j.reader.attempt == wanted and j.reader.rank is not None]
        for journal in sorted(_without_helpers(journals), key=lambda j: j.age):
            rank = journal.reader.rank
            if rank is not None and (rank not in current or journal.replaces(current[rank])):
                current[rank] = journal
        newest = max(current.values(), key=lambda j: j.age, default=None)
        world = newest.world_size if newest else None
        return {rank: current[rank] for rank in sorted(current) if world is None or current[rank].world_size in (None, world)}

    def evidence(
        self,
        job: Job,
        *,
        activities: Mapping[int, Activity] | None = None,
        exits: Mapping[int, Exit] | None = None,
        stacks: Iterable[RankStacks] = (),
        observed_at: int | None = None,
        ended: bool = False,
        hang_after_ns: int = 10_000_000_000,
        attempt: int | None = None,
        notes: Iterable[str] = (),
    ) -> Evidence:
        """All that is known of the newest (or the given) attempt now.

        ``exits`` are process exits by pid, as seen from outside: what a rank itself announced wins for the time, what was
        seen from outside wins for the status.
        """
        current = self._current(attempt)
        traces = tuple(_with_exit(trace, exits or {}) for journal in current.values() if (trace := journal.trace()) is not None)
        return Evidence(
            job=_completed(job, traces, current.values()),
            traces=traces,
            activities=dict(activities or {}),
            stacks=tuple(stacks),
            observed_at=observed_at,
            ended=ended,
            hang_after_ns=hang_after_ns,
            notes=(*notes, *self.notes()),
            loops=loops_of(traces),
        )

    def notes(self) -> tuple[str, ...]:
        """What recorders without a journal left said, and which journals cannot be read."""
        refused = [f"a journal cannot be read: {message}" for message in sorted(self._refused.values())]
        return tuple((*_recorder_notes(self.path), *refused)[:MAX_NOTES])

    def info(self, attempt: int | None = None) -> dict[str, str]:
        """What the recorders said of their surroundings: torch, python, node."""
        found: dict[str, str] = {}
        for journal in self._current(attempt).values():
            found.update({key: value[:200] for key, value in journal.reader.info().items() if isinstance(value, str)})
        return found


@dataclass(slots=True)
class _Journal:
    """An open journal; a trace is decoded again only when bytes of it have changed."""

    reader: JournalReader
    node: str
    order: int
    _print: int | None = None
    _trace: Trace | None = None

    @property
    def age(self) -> tuple[int, int]:
        """Sorts older ones first: by the start of the process, then by the order in which they were found."""
        return (self.reader.process_start, self.order)

    @property
    def world_size(self) -> int | None:
        return self.reader.world_size

    def replaces(self, older: _Journal) -> bool:
        """Whether the rank is this one's process now: not if that has done nothing where the older one's was at work."""
        reader = older.reader
        return self.reader.has_operations or not reader.has_operations or reader.exit_announced

    def is_smaller(self, older: _Journal) -> bool:
        """Whether it is of a job of fewer ranks, begun while the older one's process lived."""
        ended, ours, theirs = older.reader.exit_time, self.world_size, older.world_size
        return ours is not None and theirs is not None and ours < theirs and (ended is None or ended > self.reader.began)

    def trace(self) -> Trace | None:
        print_ = zlib.crc32(self.reader.content())
        if self._trace is None or print_ != self._print:
            self._trace, self._print = self.reader.trace(self.node), print_
        self.reader.release()
        return self._trace


def _without_helpers(journals: list[_Journal]) -> list[_Journal]:
    """Those that are not of a job of its own, and smaller, that a descendant of a living rank has made."""
    if all(journal.reader.ancestor is None for journal in journals):
        return journals
    by_process: dict[tuple[str, int], list[_Journal]] = {}
    for journal in journals:
        by_process.setdefault((journal.node, journal.reader.pid), []).append(journal)
    return [j for j in journals if not any(j.is_smaller(older) for older in _ancestors(j, by_process))]


def _ancestors(journal: _Journal, by_process: Mapping[tuple[str, int], list[_Journal]]) -> Iterator[_Journal]:
    seen: set[int | None] = {journal.reader.pid, None}
    while (pid := journal.reader.ancestor) not in seen and pid is not None:
        seen.add(pid)
        found = by_process.get((journal.node, pid), [])
        yield from found
        if found:
            journal = found[-1]


def _with_exit(trace: Trace, exits: Mapping[int, Exit]) -> Trace:
    outside = exits.get(trace.pid) if trace.pid is not None else None
    if outside is None:
        return trace
    own = trace.exit
    merged = Exit(
        time=own.time if own and own.time else outside.time,
        code=outside.code if outside.code is not None else (own.code if own else None),
        announced=own is not None and own.announced,
    )
    return replace(trace, exit=merged)


def _completed(job: Job, traces: tuple[Trace, ...], journals: Collection[_Journal]) -> Job:
    """The job with what its journals say of it."""
    infos = [journal.reader.info() for journal in journals]
    versions = [info["torch"] for info in infos if isinstance(info.get("torch"), str)]
    pythons = [info["python"] for info in infos if isinstance(info.get("python"), str)]
    worlds = [trace.world_size for trace in traces if trace.world_size]
    return replace(
        job,
        world_size=job.world_size or max(worlds, default=None),
        nodes=job.nodes or tuple(sorted({trace.node for trace in traces if trace.node})),
        torch=job.torch or (versions[0][:200] if versions else None),
        python=job.python or (pythons[0][:200] if pythons else None),
        backends=job.backends or tuple(sorted({g.backend for trace in traces for g in trace.groups.values() if g.backend})),
        attempt=max((journal.reader.attempt for journal in journals), default=job.attempt),
    )


def _recorder_notes(folder: Path) -> list[str]:
    """What processes said that could not open a journal (``<pid>.note``)."""
    notes: list[str] = []
    for path in sorted(folder.glob("*.note"))[:MAX_NOTES]:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(handle, "rb") as file:
                text = file.read(MAX_NOTE).decode("utf-8", "replace")
        except OSError:
            continue
        notes.extend(line for line in text.splitlines() if line.strip())
    return notes
