"""Ranks that never ran: a program for each, played as torch.distributed would play it, and the evidence a recorder would leave.

The simulator knows nothing of the diagnosis.  A collective completes when all members of its group have entered their operation
with the same sequence number; ranks whose operations differ wait for ever, unless the bytes on the wire would fit, in which
case the operation completes with garbage, as gloo does.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from desync.model import (
    Activity,
    Call,
    CallSite,
    Cause,
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
    RankStacks,
    Stack,
    Tensors,
    Trace,
)

FILE = "train.py"
WORLD = "default_pg"
START = 1_700_000_000_000_000_000
MILLISECOND = 1_000_000
HANG_AFTER = 10_000 * MILLISECOND
STALLED_LINE = 9000


@dataclass(frozen=True)
class Do:
    """One statement of a rank's program."""

    what: str
    """collective, send, recv, wait, mark, pause, raise, kill, exit, stall, work."""
    line: int = 0
    group: str = WORLD
    op: str = "all_reduce"
    elements: int = 1
    dtype: str = "float32"
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    mark: MarkKind | None = None
    value: int | str | None = None
    is_async: bool = False
    bucket: str | None = None
    words: str = "bad value"
    """What an exception says."""


@dataclass(frozen=True)
class Truth:
    """What was done to the job."""

    cause: Cause
    rank: int | None = None
    line: int | None = None
    silent: bool = False
    """The fault may pass without anybody waiting."""
    at: int = 0
    """Which statement of the rank's program is the first that is not as it should be."""
    alike: Cause | None = None
    """Another cause that leaves the same records as long as the rank is held in that statement."""


@dataclass
class Plan:
    """A job: its groups, what each rank does, and the truth."""

    groups: dict[str, tuple[int, ...]]
    programs: list[list[Do]]
    truths: list[Truth] = field(default_factory=list)
    loops: tuple[tuple[int, int], ...] = ()
    eager: bool = False
    """The source of a broadcast goes on at once, as with gloo for small tensors."""


@dataclass
class _Row:
    do: Do
    seq: int
    entered: int
    completed: int = 0
    failed_at: int = 0


@dataclass
class _Marked:
    do: Do
    at: int
    after: int
    left: int | None


class _Rank:
    def __init__(self, number: int, program: list[Do]) -> None:
        self.number = number
        self.program = program
        self.at = 0
        self.clock = START
        self.rows: list[_Row] = []
        self.marks: list[_Marked] = []
        self.seqs: Counter[object] = Counter()
        self.blocked: _Row | None = None
        self.ended: tuple[Do, int] | None = None
        self.stalled = False


class Simulator:
    """Plays a plan until nobody moves any more."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.random = random.Random(seed)
        self.ranks = [_Rank(number, program) for number, program in enumerate(plan.programs)]
        self.board: dict[tuple[str, int], dict[int, _Row]] = defaultdict(dict)
        self.pairs: dict[tuple[str, int, int, int], dict[str, _Row]] = defaultdict(dict)
        self.over = False
        """Whether the launcher has ended what was left of the job."""

    def run(self) -> None:
        """Play to the end."""
        moving = True
        while moving:
            moving = False
            for rank in sorted(self.ranks, key=lambda rank: (rank.clock, rank.number)):
                while self._can_move(rank):
                    self._step(rank)
                    moving = True
                    if rank.blocked is not None:
                        break

    def _can_move(self, rank: _Rank) -> bool:
        if rank.ended or rank.stalled or rank.at >= len(rank.program):
            return False
        if rank.blocked is not None:
            if not rank.blocked.completed:
                return False
            rank.clock = max(rank.clock, rank.blocked.completed)
            rank.blocked = None
        return True

    def _step(self, rank: _Rank) -> None:
        do = rank.program[rank.at]
        rank.at += 1
        rank.clock += self.random.randint(1, 5) * MILLISECOND
        if do.what == "collective":
            self._collective(rank, do)
        elif do.what in ("send", "recv"):
            self._p2p(rank, do)
        elif do.what == "wait":
            self._wait(rank)
        elif do.what == "mark":
            lasts = do.mark is MarkKind.BACKWARD
            rank.marks.append(_Marked(do, rank.clock, len(rank.rows), left=None if lasts else rank.clock))
        elif do.what == "pause":
            rank.clock += self.random.randint(1, 6) * HANG_AFTER // 2
        elif do.what in ("stall", "work"):
            rank.stalled = True
        else:
            rank.ended = (do, rank.clock)

    def _collective(self, rank: _Rank, do: Do) -> None:
        rank.seqs[do.group] += 1
        row = _Row(do, rank.seqs[do.group], rank.clock)
        rank.rows.append(row)
        here = self.board[(do.group, row.seq)]
        here[rank.number] = row
        if not do.is_async:
            rank.blocked = row
        if self.plan.eager and do.op == "broadcast":
            self._hand_out(here)
        elif len(here) == len(self.plan.groups[do.group]) and self._fits(list(here.values())):
            done = max(each.entered for each in here.values()) + MILLISECOND
            for each in here.values():
                each.completed = done

    def _hand_out(self, here: dict[int, _Row]) -> None:
        """A broadcast whose source does not wait for those that it sends to."""
        for row in here.values():
            source = here.get(row.do.root) if row.do.root is not None else None
            if row.completed or row.do.op != "broadcast" or source is None:
                continue
            if source.do.op == "broadcast" and source.do.root == row.do.root and self._fits([row, source]):
                row.completed = max(row.entered, source.entered) + MILLISECOND

    def _wait(self, rank: _Rank) -> None:
        open_rows = [row for row in rank.rows if row.do.is_async and not row.completed]
        if open_rows:
            rank.blocked = open_rows[0]
            rank.at -= 1
            return
        for marked in rank.marks:
            if marked.left is None:
                marked.left = rank.clock  # backward is over

    @staticmethod
    def _fits(rows: list[_Row]) -> bool:
        """Whether the operations would complete on the wire, equal or not."""
        wires = {(do.op, 0 if do.op == "barrier" else do.elements, _size(do.dtype), do.root) for do in (row.do for row in rows)}
        return len(wires) == 1

    def _p2p(self, rank: _Rank, do: Do) -> None:
        assert do.peer is not None
        source, target = (rank.number, do.peer) if do.what == "send" else (do.peer, rank.number)
        key = (do.group, source, target)
        rank.seqs[(key, do.what)] += 1
        row = _Row(do, rank.seqs[(key, do.what)], rank.clock)
        rank.rows.append(row)
        pair = self.pairs[(*key, row.seq)]
        pair[do.what] = row
        rank.blocked = row
        if len(pair) == 2:
            done = max(each.entered for each in pair.values()) + MILLISECOND
            for each in pair.values():
                each.completed = done

    def break_down(self) -> bool:
        """What the end of a rank leads to: errors in its peers, one after the other, and the launcher ends the rest.

        Returns whether there is any such end.
        """
        gone = {rank.number for rank in self.ranks if rank.ended}
        if not gone:
            return False
        moment = self.end
        while victims := [rank for rank in self.ranks if self._loses(rank, gone)]:
            moment += MILLISECOND
            for rank in victims:
                assert rank.blocked is not None
                rank.blocked.failed_at = moment
                rank.ended = (Do("raise", line=rank.blocked.do.line, words="Connection closed by peer [127.0.0.1]"), moment)
                gone.add(rank.number)
        for rank in self.ranks:
            done = rank.at >= len(rank.program) and rank.blocked is None and not rank.stalled
            if rank.ended is None and not done:
                rank.ended = (Do("terminate"), moment + MILLISECOND)
        self.over = True
        return True

    def _loses(self, rank: _Rank, gone: set[int]) -> bool:
        row = rank.blocked
        if row is None or row.completed or rank.ended:
            return False
        others = {row.do.peer} if row.do.peer is not None else set(self.plan.groups[row.do.group])
        return bool(others & gone)

    def is_awaited(self, other: _Rank) -> bool:
        """Whether a rank is in an operation to which another has not come."""
        for rank in self.ranks:
            row = rank.blocked
            if row is None or row.completed or rank is other:
                continue
            if row.do.peer is not None:
                if row.do.peer == other.number:
                    return True
            elif other.number in self.plan.groups[row.do.group] and other.seqs[row.do.group] < row.seq:
                return True
        return False

    @property
    def end(self) -> int:
        """When the last thing happened."""
        return max([rank.clock for rank in self.ranks] + [row.completed for rank in self.ranks for row in rank.rows] + [START])


def _size(dtype: str) -> int:
    return {"float32": 4, "int32": 4, "int64": 8, "float16": 2}[dtype]


def evidence(simulator: Simulator, until: int, dropped: list[int] | None = None, stale_ns: int = 20 * HANG_AFTER) -> Evidence:
    """What a recorder and a watcher would have seen up to a moment (and, after the end, for a while longer)."""
    now = until if until < simulator.end else simulator.end + stale_ns
    plan, ranks = simulator.plan, simulator.ranks
    traces = tuple(_trace(plan, rank, now, dropped[rank.number] if dropped else 0) for rank in ranks)
    watched = [rank for rank in ranks if now > simulator.end and rank.ended is None]
    activities = {rank.number: _activity(rank) for rank in watched}
    return Evidence(
        job=Job(world_size=len(ranks), exit_code=1 if simulator.over else None),
        traces=traces,
        activities=activities,
        stacks=tuple(_stacks(rank, now) for rank in watched),
        observed_at=now,
        ended=simulator.over,
        hang_after_ns=HANG_AFTER,
        loops={FILE: plan.loops} if plan.loops else {},
    )


def _activity(rank: _Rank) -> Activity:
    works = rank.stalled and rank.program[rank.at - 1].what == "work"
    return Activity(rank.number, Motion.MOVING if works else Motion.FROZEN, since=rank.clock, cpu_s=9.0 if works else 0.0)


def _stacks(rank: _Rank, now: int) -> RankStacks:
    """The main thread of a rank: in its operation, or wherever it stands."""
    line = rank.blocked.do.line if rank.blocked is not None else STALLED_LINE
    return RankStacks(rank.number, "py-spy", now, (Stack("MainThread", (Frame("main", FILE, line),)),))


def _trace(plan: Plan, rank: _Rank, now: int, drop: int) -> Trace:
    rows = [row for row in rank.rows if row.entered <= now]
    drop = min(drop, len(rows))
    seen = [marked for marked in rank.marks if marked.at <= now]
    marks = tuple(_mark(marked, now) for marked in seen if marked.after >= drop)
    ended = rank.ended if rank.ended is not None and rank.ended[1] <= now else None
    exit_, failure = _end(ended, len(rows))
    if failure is not None:
        marks = (*marks, failure)
    through = rank.at >= len(rank.program) and rank.blocked is None and not rank.stalled
    if through and rank.ended is None and rank.clock <= now:
        exit_ = Exit(rank.clock, 0, announced=True)
    return Trace(
        rank=rank.number,
        operations=_table(plan, rows[drop:], now),
        marks=marks,
        groups={name: Group(name, ranks, backend="gloo") for name, ranks in plan.groups.items() if rank.number in ranks},
        progress=_progress([marked.do for marked in seen]),
        exit=exit_,
        pid=1000 + rank.number,
        world_size=len(plan.programs),
        dropped=drop,
    )


def _end(ended: tuple[Do, int] | None, operations: int) -> tuple[Exit | None, Mark | None]:
    if ended is None:
        return None, None
    do, at = ended
    if do.what == "kill":
        return Exit(at, -9), None
    if do.what == "terminate":
        return Exit(at, -15), None
    if do.what == "exit":
        return Exit(at, 0, announced=True), None
    frames = (Frame("main", FILE, do.line or 1),)
    memory = "out of memory" in do.words
    failure = Failure("RuntimeError" if do.line else "ValueError", do.words, frames, out_of_memory=memory)
    exception = Mark(MarkKind.EXCEPTION, at, after=operations, failure=failure, site=CallSite(frames))
    return Exit(at + MILLISECOND, 1, announced=True), exception


def _mark(marked: _Marked, now: int) -> Mark:
    do = marked.do
    assert do.mark is not None
    left = marked.left if marked.left is not None and marked.left <= now else None
    return Mark(do.mark, marked.at, left=left, value=do.value, after=marked.after)


def _progress(marks: list[Do]) -> Progress:
    counts = Counter(do.mark for do in marks)
    last = next((do.mark for do in reversed(marks) if do.mark in (MarkKind.FETCH, MarkKind.EXHAUSTED)), None)
    return Progress(
        batches=counts[MarkKind.FETCH],
        forwards=counts[MarkKind.FORWARD],
        backwards=counts[MarkKind.BACKWARD],
        steps=counts[MarkKind.STEP],
        loader_exhausted=last is MarkKind.EXHAUSTED,
        passes=tuple(int(do.value or 0) for do in marks if do.mark is MarkKind.EXHAUSTED),
    )


def _table(plan: Plan, rows: list[_Row], now: int) -> OperationTable:
    calls: dict[Call, int] = {}
    groups: dict[str, int] = {}
    names = ("call", "group", "seq", "thread", "entered", "returned", "completed")
    columns: dict[str, array[int]] = {name: array("q") for name in names}
    for row in rows:
        call = _call(row.do)
        columns["call"].append(calls.setdefault(call, len(calls)))
        columns["group"].append(groups.setdefault(row.do.group, len(groups)))
        columns["seq"].append(row.seq)
        columns["thread"].append(1)
        columns["entered"].append(row.entered)
        columns["returned"].append(row.entered + 1000)
        columns["completed"].append(-row.failed_at if row.failed_at else row.completed if row.completed <= now else 0)
    return OperationTable(calls=tuple(calls), groups=tuple(groups), **columns)


def _call(do: Do) -> Call:
    tensors = Tensors(((do.elements,),), (do.dtype,)) if do.op != "barrier" else Tensors()
    return Call(
        op=do.op if do.what == "collective" else do.what,
        kind=Kind.COLLECTIVE if do.what == "collective" else Kind.P2P,
        inputs=tensors,
        reduce_op=do.reduce_op,
        root=do.root,
        peer=do.peer,
        is_async=do.is_async,
        site=CallSite((Frame("main", FILE, do.line),)),
        bucket=do.bucket,
    )
