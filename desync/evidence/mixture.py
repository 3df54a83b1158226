"""Everything that is left of one job, put together: dumps, logs, ncclras answers, stacks and journals in any mixture.

What records operations best comes first: journals, then flight-recorder dumps, then what logs and stacks tell of single ones.
Exceptions, exits and statements of logs are added to whatever traces there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import PurePath

from desync.errors import EvidenceError
from desync.evidence import ncclras, pyspy_dump
from desync.evidence.flight_recorder.columns import RawDump
from desync.evidence.flight_recorder.merge import MergedDumps, merge
from desync.evidence.flight_recorder.pool import Unread, Wanted, read_all
from desync.evidence.journals import JournalFolder
from desync.evidence.logs.assemble import LogEvidence, assemble
from desync.evidence.logs.clock import first_year
from desync.evidence.logs.facts import Facts
from desync.evidence.logs.reader import LogReader
from desync.evidence.run_directory import RUN_FILE, load
from desync.evidence.sources import BAD_STREAM, Source, Sources, Type
from desync.model import Claim, Evidence, Job, RankStacks, Trace

MAX_TEXT = 64 << 20
"""Bound on a py-spy dump or an answer of ncclras."""
MAX_NOTES = 64
WHICH_RANK = "which rank it is cannot be told; a file of its own with the rank in its name (rank3.txt) would tell it"

_RANK_IN_NAME = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_OF_NODE = re.compile(r"(?:node|machine|host|group|local)[._-]?$", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<!\d)(\d{1,7})(?=\D*$)")
_TORCHRUN = re.compile(r"attempt_\d+/(\d{1,5})/(?:stdout|stderr)\.log$")


@dataclass(slots=True)
class _Gathered:
    """What each kind of source gave."""

    dumps: MergedDumps | None = None
    logs: LogEvidence | None = None
    ras: ncclras.RasEvidence | None = None
    stacks: tuple[RankStacks, ...] = ()
    recorded: Evidence | None = None
    notes: list[str] = field(default_factory=list)


def gather(sources: Sources) -> Evidence:
    """Evidence from all sources, which are closed then.

    Raises EvidenceError if none of them could be read, RunDirectoryError for a broken run.
    """
    try:
        return _gather(sources)
    finally:
        sources.close()


def _gather(sources: Sources) -> Evidence:
    gathered = _Gathered(notes=list(sources.notes))
    by_type: dict[Type, list[Source]] = {}
    for source in sources.found:
        by_type.setdefault(source.type, []).append(source)
    gathered.recorded = _recorded(sources)
    gathered.dumps = _dumps(by_type.get(Type.DUMP, []), gathered.notes)
    gathered.logs = _logs(by_type.get(Type.LOG, []), gathered.notes)
    gathered.ras = _ras(by_type.get(Type.RAS, []), gathered.notes)
    gathered.stacks = _stacks(by_type.get(Type.STACKS, []), gathered)
    if not (gathered.recorded or gathered.dumps or gathered.logs or gathered.ras or gathered.stacks):
        first = f": {gathered.notes[0]}" if gathered.notes else ""
        raise EvidenceError(f"nothing there can be read{first}", "name flight-recorder dumps, logs, ncclras or py-spy output")
    return _together(gathered)


def _recorded(sources: Sources) -> Evidence | None:
    """Evidence of journals; a folder of journals alone is what a watcher leaves that was killed at once."""
    if not sources.run_directories:
        return None
    place = sources.run_directories[0]
    if (place / RUN_FILE).exists():
        return load(place)
    folder = JournalFolder(place / "journals" if (place / "journals").is_dir() else place)
    folder.refresh()
    try:
        return folder.evidence(Job(), ended=True, notes=("there is no run.json: nothing is known of how processes ended",))
    finally:
        folder.close()


def _dumps(sources: Sequence[Source], notes: list[str]) -> MergedDumps | None:
    if not sources:
        return None
    read = read_all([Wanted(source.path, None if source.path else source.content) for source in sources])
    dumps: dict[int, RawDump] = {}
    for (source, rank), dump in zip(_ranked(sources), read, strict=True):
        if isinstance(dump, Unread):
            notes.append(f"{source.name!r} was passed over: {dump.reason}")
        elif rank is None:
            notes.append(f"{source.name!r} was passed over: its name does not tell the rank, and nothing in a dump does")
        elif rank not in dumps or _newest(dump) > _newest(dumps[rank]):
            dumps[rank] = dump
    if len(dumps) < sum(isinstance(dump, RawDump) for dump in read):
        notes.append("some ranks have several dumps; the newest counts")
    if stale := _stale(dumps):
        ranks = ", ".join(map(str, stale[:8]))
        notes.append(f"dumps that end before all others begin were left out, as of an earlier run: rank {ranks}")
    kept = {rank: dump for rank, dump in dumps.items() if rank not in stale}
    return merge(kept) if kept else None


APART_NS = 60_000_000_000
"""Clocks of machines differ by less than this."""


def _stale(dumps: Mapping[int, RawDump]) -> list[int]:
    """Ranks whose dumps end well before those of the greater part of the ranks begin."""
    spans = sorted((int.from_bytes(each.entered[:8], "little"), _newest(each), rank) for rank, each in dumps.items())
    spans = [span for span in spans if span[0] and span[1]]
    stale, latest = 0, 0
    for index, (oldest, newest, _) in enumerate(spans):
        if index and latest + APART_NS < oldest and 2 * index < len(spans):
            stale = index
        latest = max(latest, newest)
    return sorted(rank for _, _, rank in spans[:stale])


def _newest(dump: RawDump) -> int:
    return int.from_bytes(dump.entered[-8:], "little") if dump.entered else 0


def _ranked(sources: Sequence[Source]) -> list[tuple[Source, int | None]]:
    """Each source with the rank in its name: behind "rank", else the last number."""
    found = []
    for source in sources:
        name = _stem(source.name)
        match = _RANK_IN_NAME.search(name) or _LAST_NUMBER.search(name)
        found.append((source, int(match[1]) if match else None))
    return found


def _stem(name: str) -> str:
    """The name of a file without folders and endings."""
    base = PurePath(name.rpartition("!")[2]).name
    return re.sub(r"(?:\.(?:json|pickle|pkl|gz|zst|bz2|xz|log|txt|out|err|pyspy|stack|dump))+$", "", base)


def _logs(sources: Sequence[Source], notes: list[str]) -> LogEvidence | None:
    if not sources:
        return None
    reader = LogReader()
    ranks = _file_ranks(sources)
    for source in sources:
        local = _TORCHRUN.search(source.name)
        year = first_year(source.head.decode("utf-8", "replace")) or _year(source.modified)
        try:
            with source.open() as stream:
                rank, number = ranks.get(source.name, (None, None))
                reader.read(stream, file_rank=rank, file_number=number, file_local=int(local[1]) if local else None, year=year)
        except BAD_STREAM as error:
            notes.append(f"{source.name!r} was read only in part: {getattr(error, 'strerror', None) or 'it is damaged'}")
    return assemble(_run_that_counts(reader.runs, notes))


def _year(modified: float | None) -> int | None:
    return datetime.fromtimestamp(modified, timezone.utc).year if modified is not None and 0 < modified < 4e9 else None


def _file_ranks(sources: Sequence[Source]) -> dict[str, tuple[int | None, int | None]]:
    """Ranks in the names of logs, and numbers of which only the logs can tell whether they are ranks.

    A whole set of files must be numbered from 0; torchrun's folders count on one node only.
    """
    patterns: dict[str, dict[str, tuple[int | None, int | None]]] = {}
    for source in sources:
        stem = _stem(source.name)
        match = _RANK_IN_NAME.search(stem) or _LAST_NUMBER.search(stem)
        if match is not None and not _TORCHRUN.search(source.name):
            folder = source.name[: len(source.name) - len(PurePath(source.name).name)]
            pattern = f"{folder}{stem[: match.start(1)]}#{stem[match.end(1) :]}"
            named = match.re is _RANK_IN_NAME and not _OF_NODE.search(stem[: match.start()])
            patterns.setdefault(pattern, {})[source.name] = (int(match[1]), None) if named else (None, int(match[1]))
    found: dict[str, tuple[int | None, int | None]] = {}
    for names in patterns.values():
        numbers = sorted((rank if rank is not None else number) or 0 for rank, number in names.values())
        if len(numbers) > 1 and numbers == list(range(len(numbers))):
            found.update(names)
    return found


def _run_that_counts(runs: list[Facts], notes: list[str]) -> Facts:
    """The newest run that failed, unless the newest of all ended well; if none did, the newest with anything to say."""
    failed = [run for run in runs if run.failed]
    newest = runs[-1]
    if failed and newest is not failed[-1] and newest.finished is not None:
        notes.append("an earlier run in the logs failed; this is about the newest, which ended well")
        return newest
    if len(failed) > 1:
        notes.append(f"the logs hold {len(failed)} runs that failed; this is about the last")
    return failed[-1] if failed else next((run for run in reversed(runs) if run.finished or run.speakers), runs[-1])


def _ras(sources: Sequence[Source], notes: list[str]) -> ncclras.RasEvidence | None:
    answers = []
    for source in sources:
        try:
            answers += ncclras.parse(_text(source))
        except BAD_STREAM as error:
            notes.append(f"{source.name!r} was passed over: {error}")
    return ncclras.combine(answers) if answers else None


def _text(source: Source) -> str:
    with source.open() as stream:
        return stream.read(MAX_TEXT).decode("utf-8", "replace")


def _stacks(sources: Sequence[Source], gathered: _Gathered) -> tuple[RankStacks, ...]:
    """Stacks by rank: from the command line, the process, or the name of the file."""
    by_pid = {trace.pid: trace.rank for trace in _known_traces(gathered) if trace.pid is not None}
    found: dict[int, RankStacks] = {}
    for source, named in _ranked(sources):
        try:
            processes = pyspy_dump.parse(_text(source))
        except BAD_STREAM as error:
            gathered.notes.append(f"{source.name!r} was passed over: {error}")
            continue
        for process in processes:
            rank = by_pid.get(process.pid, process.rank) if process.pid is not None else process.rank
            if rank is None and len(processes) == 1 and named != process.pid:
                rank = named
            if rank in found:
                gathered.notes.append(f"{source.name!r} and another file both speak for rank {rank}; the last one counts")
            if rank is None:
                gathered.notes.append(f"a process in {source.name!r} was passed over: {WHICH_RANK}")
            else:
                found[rank] = RankStacks(rank, pyspy_dump.SOURCE, None, process.threads)
    return tuple(found[rank] for rank in sorted(found))


def _known_traces(gathered: _Gathered) -> Iterable[Trace]:
    if gathered.recorded is not None:
        yield from gathered.recorded.traces
    if gathered.logs is not None:
        yield from gathered.logs.traces
    if gathered.ras is not None:
        yield from gathered.ras.traces


def _together(gathered: _Gathered) -> Evidence:
    logs, dumps, recorded, ras = gathered.logs, gathered.dumps, gathered.recorded, gathered.ras
    traces: dict[int, Trace] = {}
    for source in (recorded, dumps, logs, ras):
        for trace in source.traces if source is not None else ():
            traces[trace.rank] = _joined(traces[trace.rank], trace) if trace.rank in traces else trace
    world = max([_world(traces), *(each.world_size or 0 for each in (dumps, logs, ras) if each is not None)])
    if not any(len(trace.operations) for trace in traces.values()) and gathered.stacks:
        gathered.notes.append("stacks tell neither groups nor numbers, hence not which of its calls at a line a rank is in")
        for trace in pyspy_dump.traces(gathered.stacks, max([world, *(each.rank + 1 for each in gathered.stacks)])):
            traces[trace.rank] = _joined(trace, traces[trace.rank]) if trace.rank in traces else trace
    job = recorded.job if recorded is not None else Job()
    notes = [*gathered.notes, *(note for each in (dumps, logs, ras) if each is not None for note in each.notes)]
    base = recorded if recorded is not None else Evidence(job, ())
    return replace(
        base,
        job=_job(job, gathered, traces, world),
        traces=tuple(traces[rank] for rank in sorted(traces)),
        stacks=(*base.stacks, *gathered.stacks),
        ended=base.ended or (logs is not None and (logs.failed or logs.finished)),
        notes=(*base.notes, *dict.fromkeys(notes))[:MAX_NOTES],
        claims=_claims(gathered),
    )


def _world(traces: Mapping[int, Trace]) -> int:
    return max((trace.world_size or trace.rank + 1 for trace in traces.values()), default=0)


def _job(job: Job, gathered: _Gathered, traces: Mapping[int, Trace], world: int) -> Job:
    backends = {group.backend for trace in traces.values() for group in trace.groups.values() if group.backend}
    nodes = {trace.node for trace in traces.values() if trace.node}
    return replace(
        job,
        world_size=job.world_size or world or None,
        torch=job.torch or (gathered.logs.torch if gathered.logs is not None else None),
        nodes=job.nodes or tuple(sorted(nodes | set(gathered.logs.nodes if gathered.logs is not None else ()))),
        backends=job.backends or tuple(sorted(backends)),
    )


def _joined(first: Trace, other: Trace) -> Trace:
    """One rank from two sources; of operations those of the better one, of all else whatever either knows."""
    return replace(
        first,
        operations=first.operations if len(first.operations) else other.operations,
        groups={**other.groups, **first.groups},
        marks=tuple(sorted((*first.marks, *other.marks), key=lambda mark: mark.time)),
        exit=first.exit or other.exit,
        pid=first.pid or other.pid,
        node=first.node or other.node,
        world_size=first.world_size or other.world_size,
    )


def _claims(gathered: _Gathered) -> tuple[Claim, ...]:
    of_logs = gathered.logs.claims if gathered.logs is not None else ()
    of_ras = gathered.ras.claims if gathered.ras is not None else ()
    of_dumps = gathered.dumps.claims if gathered.dumps is not None else ()
    return (*of_logs, *of_ras, *of_dumps)
