"""The records as a trace in Chrome's format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each rank is a process; in it one track tells what the program did (batches, forward, backward, and marks as instants), and one
track for each group its operations, from the moment at which the rank entered them until they were complete.  Operations that
overlap (DDP's buckets do) go to further tracks of the same group.  Inside an operation lies the call, until it returned.  Flows
join the same operation across ranks.  Times are microseconds from the first record; clocks of different machines are aligned
(:mod:`desync.report.clocks`).

Format: "Trace Event Format", the JSON object form.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from desync.model import Call, Evidence, Frame, Kind, Mark, MarkKind, Operation, Trace
from desync.report.build import iso
from desync.report.clocks import Clocks, align
from desync.report.text import LINE, NAME, bounded, clean, place, shapes

MAX_OPERATIONS = 15_000
"""Of all ranks together; the oldest are left out, with the marks before them.  A viewer has some four events for each."""
PROGRAM = 1
FIRST_TRACK = 2

_SPANS = {MarkKind.FETCH: "batch", MarkKind.FORWARD: "forward", MarkKind.BACKWARD: "backward"}
_INSTANTS = {
    MarkKind.EXHAUSTED: "loader exhausted",
    MarkKind.STEP: "optimizer step",
    MarkKind.EXCEPTION: "exception",
    MarkKind.EXIT: "exit",
    MarkKind.USER: "mark",
}

Event = dict[str, Any]


def render_timeline(evidence: Evidence) -> str:
    """The trace as JSON text in ASCII, ending with a line end."""
    clocks = align(evidence)
    per_rank = max(1, MAX_OPERATIONS // max(1, len(evidence.traces)))
    chosen = [_Rank(trace, clocks.offset(trace), per_rank) for trace in evidence.traces]
    scale = _scale(chosen, evidence)
    events: list[Event] = []
    slices: list[_Slice] = []
    for rank in chosen:
        tracks = _Tracks()
        events += _program(rank, scale)
        slices += _operations(rank, scale, tracks)
        events += _names(rank, tracks)
    events += [event for one in slices for event in one.events()]
    events += _flows(slices)
    content = {"displayTimeUnit": "ms", "otherData": _about(evidence, clocks, chosen, scale), "traceEvents": events}
    return json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n"


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank's trace, what to add to its times, and how many of its operations are shown."""

    trace: Trace
    offset: int
    most: int

    @property
    def first(self) -> int:
        return max(0, len(self.trace.operations) - self.most)

    def marks(self) -> list[Mark]:
        """Those that do not lie before the first operation that is shown."""
        table = self.trace.operations
        since = table.entered[self.first] if self.first else 0
        return [mark for mark in self.trace.marks if mark.time >= since]

    def rows(self) -> Iterator[Operation]:
        table = self.trace.operations
        return (table.row(self.trace.rank, index) for index in range(self.first, len(table)) if table.entered[index])


@dataclass(frozen=True, slots=True)
class _Scale:
    """The axis: epoch nanoseconds of its start and its end."""

    start: int
    end: int

    def us(self, time: int) -> float:
        """Microseconds from the start."""
        return max(0, time - self.start) / 1000


def _scale(ranks: Sequence[_Rank], evidence: Evidence) -> _Scale:
    times = [evidence.observed_at] if evidence.observed_at else []
    for rank in ranks:
        table = rank.trace.operations
        columns = [table.entered, table.returned, table.completed]
        kept = [abs(time) for column in columns for time in column[rank.first :] if time]
        kept += [time for mark in rank.marks() for time in (mark.time, mark.left) if time]
        times += [time + rank.offset for time in (min(kept), max(kept))] if kept else []
    return _Scale(min(times, default=0), max(times, default=0))


class _Tracks:
    """Numbers the tracks of one rank: a group has as many as operations of it overlap."""

    def __init__(self) -> None:
        self._free: dict[str, list[tuple[int, int]]] = {}
        self.names: dict[int, str] = {}

    def take(self, group: str, start: int, end: int) -> int:
        """A track of the group that is free from ``start`` on."""
        lanes = self._free.setdefault(group, [])
        for number, (track, busy) in enumerate(lanes):
            if busy <= start:
                lanes[number] = (track, end)
                return track
        track = FIRST_TRACK + len(self.names)
        self.names[track] = bounded(group, NAME) if not lanes else f"{bounded(group, NAME)} ({len(lanes) + 1})"
        lanes.append((track, end))
        return track


@dataclass(frozen=True, slots=True)
class _Slice:
    """An operation's place in the trace."""

    operation: Operation
    track: int
    start_us: float
    end_us: float
    returned_us: float | None

    def events(self) -> Iterator[Event]:
        """The operation, and inside it the call."""
        operation = self.operation
        common = {"pid": operation.rank, "tid": self.track, "ts": self.start_us}
        name = f"{_clean(operation.call.op)} {operation.seq}"
        event: Event = {
            "name": name, "cat": operation.call.kind.value, "ph": "X", **common,
            "dur": round(self.end_us - self.start_us, 3), "args": _arguments(operation),
        }  # fmt: skip
        if operation.pending or operation.failed:
            event["cname"] = "terrible"
        yield event
        if self.returned_us is not None and self.returned_us < self.end_us:
            yield {"name": "call", "cat": "call", "ph": "X", **common, "dur": round(self.returned_us - self.start_us, 3)}


def _operations(rank: _Rank, scale: _Scale, tracks: _Tracks) -> Iterator[_Slice]:
    for operation in rank.rows():
        start = (operation.entered or 0) + rank.offset
        returned = operation.returned + rank.offset if operation.returned else None
        ends = [time + rank.offset for time in (operation.returned, operation.completed) if time]
        end = scale.end if operation.pending or not ends else max(ends)
        end = max(end, start)
        track = tracks.take(operation.group, start, end)
        yield _Slice(operation, track, scale.us(start), scale.us(end), None if returned is None else scale.us(returned))


def _arguments(operation: Operation) -> dict[str, str | int]:
    state = "failed" if operation.failed else "waiting" if operation.pending else "done"
    seen = {} if operation.completed or operation.pending else {"completion": "not seen"}
    return {"state": state, "group": _clean(operation.group), "seq": operation.seq, **_described(operation.call), **seen}


@functools.lru_cache(maxsize=4096)
def _described(call: Call) -> dict[str, str | int]:
    """What the call says of itself; a job has many operations and few calls."""
    tensors = call.inputs if call.inputs.shapes else call.outputs
    said: dict[str, str | int | None] = {
        "dtype": tensors.dtype,
        "shapes": shapes(tensors.shapes),
        "reduce_op": call.reduce_op,
        "root": call.root,
        "peer": call.peer,
        "bucket": call.bucket,
        "called at": _at(call.site.innermost) if call.site and call.site.frames else None,
    }
    kept = {key: value for key, value in said.items() if value not in (None, "")}
    return {key: _clean(value) if isinstance(value, str) else value for key, value in kept.items() if value is not None}


@functools.lru_cache(maxsize=4096)
def _clean(text: str) -> str:
    return clean(text, LINE)


@functools.lru_cache(maxsize=4096)
def _at(frame: Frame) -> str:
    return place(frame, None, 200)


def _program(rank: _Rank, scale: _Scale) -> Iterator[Event]:
    """What the program did: spans that lie inside each other or apart, and instants."""
    open_ends: list[int] = []
    for mark in sorted(rank.marks(), key=lambda mark: (mark.time, -(mark.left or 0))):
        start = mark.time + rank.offset
        common: Event = {"pid": rank.trace.rank, "tid": PROGRAM, "ts": scale.us(start), "cat": "program"}
        if mark.kind not in _SPANS:
            yield {"name": _INSTANTS.get(mark.kind, mark.kind.value), "ph": "i", "s": "t", **common, "args": _said(mark)}
            continue
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        end = mark.left + rank.offset if mark.left else scale.end
        # A span that outlasts the one around it (another thread's) is cut: slices of one track nest.
        end = max(start, min([end, *open_ends[-1:]]))
        open_ends.append(end)
        yield {"name": _SPANS[mark.kind], "ph": "X", "dur": round((end - start) / 1000, 3), **common, "args": _said(mark)}


def _said(mark: Mark) -> dict[str, str]:
    failure = mark.failure
    said = {
        "name": mark.name,
        "value": None if mark.value is None or mark.kind is MarkKind.BACKWARD else str(mark.value),
        "error": f"{failure.type}: {failure.message}" if failure else None,
        "at": _at(mark.site.innermost) if mark.site and mark.site.frames else None,
    }
    return {key: _clean(value) for key, value in said.items() if value}


def _names(rank: _Rank, tracks: _Tracks) -> Iterator[Event]:
    trace = rank.trace
    of = ", ".join(filter(None, [trace.node or "", f"pid {trace.pid}" if trace.pid else ""]))
    label = f"rank {trace.rank} ({clean(of, NAME)})" if of else f"rank {trace.rank}"
    yield {"name": "process_name", "ph": "M", "pid": trace.rank, "tid": 0, "args": {"name": label}}
    yield {"name": "process_sort_index", "ph": "M", "pid": trace.rank, "tid": 0, "args": {"sort_index": trace.rank}}
    for track, name in {PROGRAM: "program", **tracks.names}.items():
        yield {"name": "thread_name", "ph": "M", "pid": trace.rank, "tid": track, "args": {"name": clean(name, NAME)}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": trace.rank, "tid": track, "args": {"sort_index": track}}


def _flows(slices: Iterable[_Slice]) -> Iterator[Event]:
    """From the rank that came first to an operation through all others to the one that came last."""
    same: dict[tuple[object, ...], list[_Slice]] = {}
    for one in slices:
        same.setdefault(_identity(one.operation), []).append(one)
    number = 0
    for members in same.values():
        if len(members) < 2:
            continue
        number += 1
        ordered = sorted(members, key=lambda one: one.start_us)
        for index, one in enumerate(ordered):
            phase = "s" if index == 0 else "f" if index == len(ordered) - 1 else "t"
            event: Event = {"name": "same operation", "cat": "flow", "ph": phase, "id": number}
            event.update(pid=one.operation.rank, tid=one.track, ts=one.start_us)
            yield event if phase == "s" else {**event, "bp": "e"}


def _identity(operation: Operation) -> tuple[object, ...]:
    """What the records of one operation on several ranks have in common."""
    call = operation.call
    if call.kind is Kind.P2P:
        ends = (call.peer, operation.rank) if "recv" in call.op else (operation.rank, call.peer)
        return (operation.group, call.kind, operation.seq, *ends)
    return (operation.group, call.kind, operation.seq)


def _about(evidence: Evidence, clocks: Clocks, ranks: Sequence[_Rank], scale: _Scale) -> dict[str, Any]:
    return {
        "producer": "desync",
        "start": iso(scale.start) if scale.start else None,
        "command": clean(" ".join(evidence.job.command), LINE),
        "clock_offsets_ns": {clean(node or "", NAME): offset for node, offset in clocks.offsets.items()},
        "clocks_not_aligned": [clean(node, NAME) for node in clocks.unaligned],
        "operations_left_out": sum(rank.first + rank.trace.dropped for rank in ranks),
    }
