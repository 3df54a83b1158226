"""Handmade traces for the tests of the diagnosis: a few operations a rank, one millisecond apart."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from desync.model import (
    Activity,
    Call,
    CallSite,
    Evidence,
    Exit,
    Failure,
    Frame,
    Group,
    Job,
    Kind,
    Mark,
    MarkKind,
    Motion,
    OperationTable,
    Progress,
    Tensors,
    Trace,
)

START = 1_700_000_000_000_000_000
MS = 1_000_000
HANG_AFTER = 10_000 * MS


@dataclass(frozen=True)
class Op:
    """One operation: what, where, and whether it finished (``done``), is pending, or failed."""

    op: str = "all_reduce"
    line: int = 10
    elements: int = 4
    done: bool = True
    failed: bool = False
    group: str = "default_pg"
    dtype: str = "float32"
    reduce_op: str | None = "sum"
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    bucket: str | None = None
    is_async: bool = False
    seen: bool = True
    """Whether its completion could have been seen."""
    thread: int = 1


def trace(rank: int, operations: list[Op], *, world: int = 4, groups=None, **fields) -> Trace:
    """The trace of a rank that did these operations; ``groups`` gives their ranks by name."""
    calls: dict[Call, int] = {}
    names: dict[str, int] = {}
    seqs: dict[object, int] = {}
    columns = {name: array("q") for name in ("call", "group", "seq", "thread", "entered", "returned", "completed")}
    dropped = fields.get("dropped", 0)
    for number, op in enumerate(operations):
        kind = Kind.P2P if op.op in ("send", "recv") else Kind.GROUP if op.op.endswith("_group") else Kind.COLLECTIVE
        key = (op.group, kind, op.op if kind is Kind.P2P else "", op.peer)
        seqs[key] = seqs.get(key, dropped) + 1
        entered = START + (dropped + number) * MS
        columns["call"].append(calls.setdefault(_call(op, kind), len(calls)))
        columns["group"].append(names.setdefault(op.group, len(names)))
        columns["seq"].append(seqs[key])
        columns["thread"].append(op.thread)
        columns["entered"].append(entered)
        columns["returned"].append(entered + 1 if kind is not Kind.GROUP or op.done else 0)
        columns["completed"].append(-(entered + 2) if op.failed else entered + 2 if op.done else 0)
    known = groups or {"default_pg": tuple(range(world))}
    return Trace(
        rank,
        OperationTable(tuple(calls), tuple(names), **columns),
        groups={name: Group(name, ranks) for name, ranks in known.items() if rank in ranks},
        world_size=world,
        pid=100 + rank,
        **fields,
    )


def _call(op: Op, kind: Kind) -> Call:
    tensors = Tensors() if op.op == "barrier" or kind is Kind.GROUP else Tensors(((op.elements,),), (op.dtype,))
    return Call(
        op.op,
        kind,
        inputs=tensors,
        reduce_op=op.reduce_op if op.op == "all_reduce" else None,
        root=op.root,
        peer=op.peer,
        tag=op.tag,
        is_async=op.is_async,
        site=CallSite((Frame("main", "train.py", op.line),)),
        bucket=op.bucket,
        completion_known=op.seen,
    )


def job(*traces: Trace, frozen=(), moving=(), later_ms: int = 60_000, **fields) -> Evidence:
    """A job of these ranks, observed so long after its start; ``frozen`` ranks have stood still since the start."""
    now = START + later_ms * MS
    activities = {rank: Activity(rank, Motion.FROZEN, since=START, process_state="sleeping") for rank in frozen}
    activities |= {rank: Activity(rank, Motion.MOVING, since=START, cpu_s=3.0) for rank in moving}
    shape = Job(world_size=len(traces))
    return Evidence(shape, traces, activities=activities, observed_at=now, hang_after_ns=HANG_AFTER, **fields)


def mark(kind: MarkKind, after: int, value=None, left: bool = True) -> Mark:
    """A mark that comes after so many operations."""
    at = START + after * MS - MS // 2
    return Mark(kind, at, left=at if left else None, value=value, after=after)


def raised(message: str, after: int, *, kind: str = "ValueError", uncaught: bool = True, oom: bool = False) -> Mark:
    """An exception after so many operations."""
    failure = Failure(kind, message, (), uncaught=uncaught, out_of_memory=oom)
    site = CallSite((Frame("main", "train.py", 99),))
    return replace(mark(MarkKind.EXCEPTION, after), failure=failure, site=site)


def left(after: int, code: int | None = 0, announced: bool = True) -> Exit:
    """An end after so many operations."""
    return Exit(START + after * MS, code, announced)


def progress(**counts) -> Progress:
    """Counts of progress."""
    return Progress(**counts)
