"""From the numbers of a journal to a :class:`desync.model.Trace`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from desync.journal.layout import Field, Flag, Header, RecordType
from desync.model import (
    Call,
    CallSite,
    DdpModule,
    Exit,
    Failure,
    Frame,
    Group,
    Kind,
    Mark,
    MarkKind,
    OperationTable,
    Progress,
    Sampler,
    Tensors,
    Trace,
)

Record = tuple[int, ...]
"""The sixteen words of one record, see :class:`desync.journal.layout.Field`."""

_MARKS = {
    RecordType.FETCH: MarkKind.FETCH,
    RecordType.EXHAUSTED: MarkKind.EXHAUSTED,
    RecordType.FORWARD: MarkKind.FORWARD,
    RecordType.BACKWARD: MarkKind.BACKWARD,
    RecordType.STEP: MarkKind.STEP,
    RecordType.EXCEPTION: MarkKind.EXCEPTION,
    RecordType.EXIT: MarkKind.EXIT,
    RecordType.USER: MarkKind.USER,
}


class Heap:
    """The decoded entries of a journal's heap, by number from 1; an entry that cannot be decoded leaves a gap."""

    def __init__(self) -> None:
        self._entries: list[Any] = [None]
        self.groups: dict[str, Group] = {}
        self.ddp: dict[str, DdpModule] = {}
        self.samplers: dict[int, Sampler] = {}
        self.notes: list[str] = []
        self.info: dict[str, Any] = {}
        self.damaged = False

    def add(self, entry: tuple[str, Any] | None) -> None:
        """Decode the next entry."""
        decoded = None
        if entry is not None:
            kind, payload = entry
            decoder = _DECODERS.get(kind)
            try:
                decoded = decoder(payload) if decoder else None
            except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError):
                self.damaged = True
        else:
            self.damaged = True
        self._entries.append(decoded)
        match decoded:
            case Group():
                self.groups[decoded.name] = decoded
            case DdpModule():
                known = self.ddp.get(decoded.name)
                self.ddp[decoded.name] = replace(decoded, torch=known.torch) if known else decoded
            case _DdpLog() if decoded.name in self.ddp:
                self.ddp[decoded.name] = replace(self.ddp[decoded.name], torch=decoded.values)
            case _NumberedSampler():
                self.samplers[decoded.number] = decoded.sampler
            case _Note():
                self.notes.append(decoded)
            case dict():
                self.info.update(decoded)

    def get(self, number: int) -> Any:
        """The entry, or None if there is none (0), or it is damaged or not there yet."""
        return self._entries[number] if 0 < number < len(self._entries) else None

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True, slots=True)
class _DdpLog:
    """What torch's logger says of a DDP module."""

    name: str
    values: dict[str, int | str]


@dataclass(frozen=True, slots=True)
class _NumberedSampler:
    """A sampler, by the number that the recorder gave it: each pass says more of it."""

    number: int
    sampler: Sampler


class _Note(str):
    """A note of the recorder."""


def _frames(payload: Any) -> tuple[Frame, ...]:
    return tuple(Frame(str(function), str(file), int(line)) for function, file, line in payload)


def _tensors(payload: Any) -> Tensors:
    shapes, dtypes, cut = payload
    return Tensors(tuple(tuple(int(n) for n in shape) for shape in shapes), tuple(map(str, dtypes)), int(cut))


def _text(payload: Any) -> str | None:
    return None if payload is None else str(payload)


def _flag(payload: Any) -> bool | None:
    return payload if isinstance(payload, bool) else None


def _ints(payload: Any) -> tuple[int, ...] | None:
    return None if payload is None else tuple(int(n) for n in payload)


def _call(payload: Any) -> Call:
    return Call(
        op=str(payload["op"]),
        kind=Kind(payload["kind"]),
        inputs=_tensors(payload.get("in", ((), (), 0))),
        outputs=_tensors(payload.get("out", ((), (), 0))),
        reduce_op=_text(payload.get("reduce_op")),
        in_splits=_ints(payload.get("in_splits")),
        out_splits=_ints(payload.get("out_splits")),
        members=_ints(payload.get("members")),
    )


def _group(payload: Any) -> Group:
    return Group(
        name=str(payload["name"]),
        ranks=tuple(int(rank) for rank in payload["ranks"]),
        description=_text(payload.get("description")),
        backend=_text(payload.get("backend")),
    )


def _failure(payload: Any) -> Failure:
    return Failure(
        type=str(payload["type"]),
        message=str(payload["message"]),
        frames=_frames(payload["frames"]),
        uncaught=bool(payload["uncaught"]),
        out_of_memory=bool(payload["out_of_memory"]),
        passed=bool(payload.get("passed", False)),
        thread=_text(payload.get("thread")),
    )


def _ddp(payload: Any) -> DdpModule:
    return DdpModule(
        name=str(payload["name"]),
        group=str(payload["group"]),
        parameters=tuple(map(str, payload["parameters"])),
        buckets=tuple(tuple(int(n) for n in bucket) for bucket in payload["buckets"]),
        find_unused_parameters=_flag(payload.get("find_unused_parameters")),
        static_graph=_flag(payload.get("static_graph")),
    )


def _ddp_log(payload: Any) -> _DdpLog:
    values = {str(key): value for key, value in payload["values"].items() if isinstance(value, (int, str))}
    return _DdpLog(str(payload["name"]), values)


def _sampler(payload: Any) -> _NumberedSampler:
    epochs = tuple(int(epoch) for epoch in payload["epochs"])
    return _NumberedSampler(int(payload["number"]), Sampler(str(payload["name"]), bool(payload["shuffle"]), epochs))


def _label(payload: Any) -> tuple[str | None, str | int | None]:
    name, value = payload
    return _text(name), (value if isinstance(value, (str, int)) else None)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "call": _call,
    "site": lambda payload: CallSite(_frames(payload)),
    "group": _group,
    "failure": _failure,
    "ddp": _ddp,
    "ddp_log": _ddp_log,
    "sampler": _sampler,
    "label": _label,
    "text": str,
    "note": _Note,
    "info": dict,
}


def _is_async(kind: Kind, flags: int) -> bool | None:
    """Whether the rank goes on beside the operation; of a send or recv that is known once somebody waits on it."""
    if flags & Flag.AWAITED:
        return False
    return bool(flags & Flag.ASYNC) if kind is Kind.COLLECTIVE else None


class TraceBuilder:
    """Makes a trace of what one journal holds."""

    def __init__(self, header: array[int], heap: Heap, wall: Callable[[int], int], node: str | None) -> None:
        self._header = header
        self._heap = heap
        self._wall = wall
        self._node = node

    def build(self, records: Iterable[Record], torn: int) -> Trace:
        """The trace of these records, beside which so many were torn."""
        header = self._header
        operations, marks = [], []
        for record in records:
            if record[Field.TYPE] & 0xFF == RecordType.OPERATION:
                operations.append(record)
            elif record[Field.TYPE] & 0xFF in _MARKS:
                marks.append(self._mark(record))
        return Trace(
            rank=header[Header.RANK] - 1,
            operations=self._table(operations),
            marks=tuple(marks),
            groups=dict(self._heap.groups),
            progress=self._progress(),
            exit=self._exit(),
            finished=self._wall(header[Header.MAIN_OVER]) if header[Header.MAIN_OVER] else None,
            ddp=tuple(self._heap.ddp.values()),
            samplers=tuple(self._heap.samplers.values()),
            pid=header[Header.PID],
            node=self._node or _text(self._heap.info.get("node")),
            world_size=header[Header.WORLD_SIZE] or None,
            dropped=max(0, (operations[0][Field.AFTER] - 1) if operations else header[Header.OPERATIONS]),
            notes=(*self._heap.notes, *self._gaps(torn)),
        )

    def _gaps(self, torn: int) -> list[str]:
        gaps = []
        if torn:
            gaps.append(f"{torn} records were not finished when they were read")
        if self._heap.damaged:
            gaps.append("a part of the journal's heap is damaged; call sites or shapes may be missing")
        if refused := self._header[Header.HEAP_REFUSED]:
            why = "the journal's heap was full, or was just being written"
            gaps.append(f"{refused} call sites, shapes or messages are missing: {why}")
        return gaps

    def _progress(self) -> Progress:
        header = self._header
        passes = header[Header.PASSES]
        kept = min(passes, Header.PASS_RING_WORDS)
        return Progress(
            batches=header[Header.BATCHES],
            forwards=header[Header.FORWARDS],
            backwards=header[Header.BACKWARDS],
            steps=header[Header.STEPS],
            loader_exhausted=bool(header[Header.EXHAUSTED]),
            passes=tuple(header[Header.PASS_RING + number % Header.PASS_RING_WORDS] for number in range(passes - kept, passes)),
        )

    def _exit(self) -> Exit | None:
        time, code = self._header[Header.EXIT_TIME], self._header[Header.EXIT_CODE]
        if not time:
            return None
        return Exit(time=self._wall(time), code=code - 1000 if code else None, announced=True)

    def _mark(self, record: Record) -> Mark:
        kind = record[Field.TYPE] & 0xFF
        entry = self._heap.get(record[Field.CALL])
        failure = entry if isinstance(entry, Failure) else None
        name, value = entry if isinstance(entry, tuple) else (None, None)
        if record[Field.VALUE]:
            value = record[Field.VALUE] - 1
        if kind == RecordType.FORWARD:
            value = "sync" if record[Field.TYPE] & Flag.SYNC else "no_sync"
        site = self._heap.get(record[Field.SITE])
        returned = record[Field.RETURNED]
        return Mark(
            kind=_MARKS[kind],
            time=self._wall(record[Field.ENTERED]),
            left=self._wall(returned) if returned else None,
            name=name,
            value=value,
            after=record[Field.AFTER],
            site=site if isinstance(site, CallSite) else None,
            failure=failure,
            thread=record[Field.THREAD] or None,
        )

    def _table(self, records: list[Record]) -> OperationTable:
        calls: dict[tuple[int, ...], int] = {}
        groups: dict[int, int] = {}
        made: list[Call] = []
        call_column, group_column = array("q"), array("q")
        for record in records:
            key = (
                record[Field.CALL],
                record[Field.SITE],
                record[Field.PEER],
                record[Field.TAG],
                record[Field.BUCKET],
                record[Field.TYPE],
            )
            number = calls.get(key)
            if number is None:
                number = calls[key] = len(made)
                made.append(self._full_call(record))
            call_column.append(number)
            group_column.append(groups.setdefault(record[Field.GROUP], len(groups)))
        return OperationTable(
            calls=tuple(made),
            groups=tuple(self._group_name(number) for number in groups),
            call=call_column,
            group=group_column,
            seq=array("q", (record[Field.SEQ] for record in records)),
            thread=array("q", (record[Field.THREAD] for record in records)),
            entered=array("q", (self._wall(record[Field.ENTERED]) for record in records)),
            returned=array("q", (self._wall(r[Field.RETURNED]) if r[Field.RETURNED] else 0 for r in records)),
            completed=array("q", (self._completion(record) for record in records)),
        )

    def _completion(self, record: Record) -> int:
        completed = record[Field.COMPLETED]
        if not completed:
            return 0
        return self._wall(completed) if completed > 0 else -self._wall(-completed)

    def _group_name(self, number: int) -> str:
        group = self._heap.get(number)
        return group.name if isinstance(group, Group) else f"unnamed group {number}"

    def _full_call(self, record: Record) -> Call:
        call = self._heap.get(record[Field.CALL])
        site = self._heap.get(record[Field.SITE])
        bucket = self._heap.get(record[Field.BUCKET])
        base = call if isinstance(call, Call) else Call(op="unrecorded", kind=Kind.COLLECTIVE)
        peer = record[Field.PEER] - 1 if record[Field.PEER] > 0 else None
        flags = record[Field.TYPE]
        return Call(
            op=base.op,
            kind=base.kind,
            inputs=base.inputs,
            outputs=base.outputs,
            reduce_op=base.reduce_op,
            root=peer if base.kind is Kind.COLLECTIVE else None,
            peer=peer if base.kind is Kind.P2P else None,
            tag=record[Field.TAG] if flags & Flag.HAS_TAG else None,
            in_splits=base.in_splits,
            out_splits=base.out_splits,
            is_async=_is_async(base.kind, flags),
            site=site if isinstance(site, CallSite) else None,
            bucket=bucket if isinstance(bucket, str) else None,
            members=base.members,
            completion_known=bool(flags & Flag.COMPLETION_KNOWN),
        )
