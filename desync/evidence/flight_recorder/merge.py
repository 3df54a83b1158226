"""The dumps of one job as traces: calls shared between ranks, p2p numbered by pair, and what counters alone tell."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from desync.evidence.flight_recorder import names
from desync.evidence.flight_recorder.columns import RawCall, RawDump, RawFrame
from desync.evidence.flight_recorder.groups import Directory, directory, handles
from desync.evidence.flight_recorder.pairs import behind, number_pairs
from desync.evidence.frames import call_site
from desync.model import Call, CallSite, Claim, Group, Kind, OperationTable, Tensors, Trace

COUNTED = Call(op="unrecorded", kind=Kind.COLLECTIVE)
"""An operation of which only the counter tells: what it was is not known."""
KNOWN_VERSION = "2."
SHORT = 200
"""Rings with fewer operations than this hold too little of a rank's past."""


@dataclass(frozen=True, slots=True)
class MergedDumps:
    """The traces, sorted by rank, and what the dumps say about the job."""

    traces: tuple[Trace, ...]
    world_size: int
    backends: tuple[str, ...]
    notes: tuple[str, ...]
    claims: tuple[Claim, ...]


def merge(dumps: Mapping[int, RawDump]) -> MergedDumps:
    """Traces of the ranks whose dumps are given."""
    groups = directory(dumps)
    calls = _Calls(groups)
    drafts = {rank: _draft(rank, dump, groups, calls) for rank, dump in sorted(dumps.items())}
    _settle_unknown_completions(drafts)
    tables = {rank: draft.table for rank, draft in drafts.items()}
    claims = behind(tables, groups.of_rank)
    number_pairs(tables, {rank: draft.dropped for rank, draft in drafts.items()})
    named = handles(dumps, groups)
    for rank, draft in drafts.items():
        _add_counted(draft, dumps[rank], named[rank], groups)
    return MergedDumps(
        traces=tuple(_trace(draft, groups, calls.backends) for draft in drafts.values()),
        world_size=groups.world_size,
        backends=tuple(sorted(set(calls.backends.values()))),
        notes=(*_misnamed(groups.misnamed), *_notes(dumps), *_past(dumps, calls.backends), *_missing(dumps, groups.world_size)),
        claims=tuple(claims),
    )


@dataclass(slots=True)
class _Draft:
    rank: int
    table: OperationTable
    dropped: int
    skipped: int
    notes: list[str] = field(default_factory=list)


class _Calls:
    """Calls of all ranks; equal ones are one object, which keeps a job of a thousand ranks small."""

    def __init__(self, groups: Directory) -> None:
        self.backends: dict[str, str] = {}
        self._groups = groups
        self._known: dict[tuple[object, ...], Call] = {}
        self._sites: dict[tuple[RawFrame, ...], CallSite | None] = {}

    def call(self, raw: RawCall, dump: RawDump) -> Call:
        name, group, inputs, outputs, stack, p2p, count = raw
        frames = dump.stacks[stack] if stack >= 0 else ()
        group_name = self._groups.name(dump, group)
        members = self._groups.groups[group_name].ranks if p2p else ()
        key = (name, inputs, outputs, frames, p2p, count, members)
        found = self._known.get(key)
        if found is None:
            op, backend = names.operation(name)
            if backend and backend != "unknown":
                self.backends.setdefault(group_name, backend)
            found = self._known[key] = _call(op, backend, raw, self._site(frames), members)
        return found

    def _site(self, frames: tuple[RawFrame, ...]) -> CallSite | None:
        if frames not in self._sites:
            self._sites[frames] = call_site(frames)
        return self._sites[frames]


def _call(op: str, backend: str | None, raw: RawCall, site: CallSite | None, members: tuple[int, ...]) -> Call:
    _, _, inputs, outputs, _, p2p, count = raw
    peer = None
    if p2p:
        found = names.peers(op)
        op, other = (found[0], found[2]) if found else (op, None)
        peer = members[other] if other is not None and other < len(members) else None
    elif count > 1 and op != "coalesced":
        op = f"{op}_coalesced"
    return Call(
        op=op,
        kind=Kind.P2P if p2p else Kind.COLLECTIVE,
        inputs=_tensors(inputs),
        outputs=_tensors(outputs),
        peer=peer,
        site=site,
        completion_known=backend != "gloo",  # gloo's entries stay "scheduled" whatever becomes of them
    )


def _tensors(raw: tuple[tuple[tuple[int, ...], ...], tuple[str, ...], int]) -> Tensors:
    shapes, dtypes, cut = raw
    return Tensors(shapes, tuple(names.dtype(name) for name in dtypes), cut)


def _draft(rank: int, dump: RawDump, groups: Directory, calls: _Calls) -> _Draft:
    found = [calls.call(raw, dump) for raw in dump.calls]
    group_names = list(dict.fromkeys(groups.name(dump, index) for index in range(len(dump.groups))))
    group_of = [group_names.index(groups.name(dump, raw[1])) for raw in dump.calls]
    columns = [array("q") for _ in range(4)]
    for column, content in zip(columns, (dump.call, dump.seq, dump.entered, dump.completed), strict=True):
        column.frombytes(content)
    call, seq, entered, completed = columns
    table = OperationTable(
        calls=tuple(found),
        groups=tuple(group_names),
        call=call,
        group=array("q", map(group_of.__getitem__, call)),
        seq=seq,
        thread=array("q", map(dump.threads.__getitem__, call)),
        entered=entered,
        returned=array("q", bytes(8 * len(call))),
        completed=completed,
    )
    return _Draft(rank, table, dump.first_record, dump.skipped)


def _settle_unknown_completions(drafts: Mapping[int, _Draft]) -> None:
    """Where a backend does not tell what has finished: all but a thread's newest operation have returned, and that one too
    if a peer has gone past it in the same group.
    """
    furthest: dict[str, int] = {}
    blind = {rank: draft for rank, draft in drafts.items() if any(not call.completion_known for call in draft.table.calls)}
    for draft in blind.values():
        for group, seq in zip(draft.table.group, draft.table.seq, strict=True):
            name = draft.table.groups[group]
            furthest[name] = max(furthest.get(name, 0), seq)
    for draft in blind.values():
        table = draft.table
        newest = {thread: row for row, thread in enumerate(table.thread)}
        for row in range(len(table)):
            call = table.calls[table.call[row]]
            inside = newest[table.thread[row]] == row
            passed = call.kind is Kind.COLLECTIVE and table.seq[row] < furthest[table.groups[table.group[row]]]
            if not call.completion_known and (not inside or passed):
                table.returned[row] = table.entered[row] or 1


def _add_counted(draft: _Draft, dump: RawDump, named: Mapping[int, str], groups: Directory) -> None:
    """Rows for groups of which the dump has a counter but no entry: how far the rank has come in them."""
    table = draft.table
    held = {
        table.groups[group]
        for call, group in set(zip(table.call, table.group, strict=True))
        if table.calls[call].kind is Kind.COLLECTIVE
    }
    counted: dict[str, tuple[int, bool]] = {}
    for handle, enqueued, completed in dump.counters:
        name = named.get(handle)
        if name is not None and name not in groups.with_p2p and enqueued > 0:
            counted[name] = (enqueued, completed >= enqueued)
    for index, count in dump.counts:
        if count > 0:
            counted[groups.name(dump, index)] = (count, True)
    missing = {name: position for name, position in counted.items() if name not in held and name in groups.groups}
    if missing:
        draft.table = _with_rows(table, missing)


def _with_rows(table: OperationTable, rows: Mapping[str, tuple[int, bool]]) -> OperationTable:
    """The table with operations in front of which only their number is known."""
    names_ = tuple(dict.fromkeys((*table.groups, *rows)))
    count = len(rows)

    def column(front: Iterable[int], rest: array[int]) -> array[int]:
        return array("q", front) + rest

    return OperationTable(
        calls=(*table.calls, COUNTED),
        groups=names_,
        call=column([len(table.calls)] * count, table.call),
        group=column([names_.index(name) for name in rows], table.group),
        seq=column([seq for seq, _ in rows.values()], table.seq),
        thread=column([0] * count, table.thread),
        entered=column([0] * count, table.entered),
        returned=column([0] * count, table.returned),
        completed=column([int(done) for _, done in rows.values()], table.completed),
    )


def _trace(draft: _Draft, groups: Directory, backends: Mapping[str, str]) -> Trace:
    skipped = (f"{draft.skipped} entries of its dump could not be read",) if draft.skipped else ()
    return Trace(
        rank=draft.rank,
        operations=draft.table,
        groups={name: _with_backend(group, backends) for name, group in groups.of_rank[draft.rank].items()},
        world_size=groups.world_size,
        dropped=draft.dropped,
        notes=skipped,
    )


def _with_backend(group: Group, backends: Mapping[str, str]) -> Group:
    backend = backends.get(group.name)
    return replace(group, backend=backend) if backend else group


def _notes(dumps: Mapping[int, RawDump]) -> Iterable[str]:
    strange = sorted({dump.version for dump in dumps.values() if not dump.version.startswith(KNOWN_VERSION)})
    if strange:
        yield f"dumps of layout {', '.join(repr(version[:20]) for version in strange)} were read as if they were 2.x"
    if len({dump.version for dump in dumps.values()}) > 1:
        yield "the dumps are of different layouts, hence of different versions of torch"
    yield "a dump holds no root, no reduce operation and nothing that happens outside of collectives"
    if not any(dump.stacks for dump in dumps.values()) and any(dump.calls for dump in dumps.values()):
        yield "the dumps hold no stacks; TORCH_INCLUDE_STACK_TRACE set to 1 keeps them in pickles (the JSON form never has any)"


def _misnamed(ranks: tuple[int, ...]) -> Iterable[str]:
    if ranks:
        yield (
            f"the dumps named for {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:8]))} are of groups that "
            "do not hold them: the numbers in the files' names are not the ranks (counted from 1, or of another job?)"
        )


def _past(dumps: Mapping[int, RawDump], backends: Mapping[str, str]) -> Iterable[str]:
    """What the dumps do not hold of what ranks did before."""
    longest = max((len(dump.call) // 8 for dump in dumps.values()), default=0)
    if "gloo" in backends.values():
        yield "gloo's recorder does not tell which operations have finished"
    elif longest and not any(each for dump in dumps.values() for each in memoryview(dump.completed).cast("q")):
        yield "nothing in the dumps has finished: without TORCH_INCLUDE_ONLY_ACTIVE they show what ranks did before as well"
    elif longest < SHORT and any(dump.first_record for dump in dumps.values()):
        yield f"the rings hold {longest} operations at most; a larger TORCH_FR_BUFFER_SIZE (2000) shows what ranks usually do"


def _missing(dumps: Mapping[int, RawDump], world: int) -> Iterable[str]:
    missing = world - len(dumps)
    if missing:
        yield (
            f"there is no dump of {missing} rank{'s' if missing > 1 else ''}; TORCH_NCCL_DUMP_ON_TIMEOUT set to 1 and "
            "TORCH_FR_DUMP_TEMP_FILE on storage that all machines share keep those of all"
        )
