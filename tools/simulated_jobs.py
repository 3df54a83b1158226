"""Jobs that never ran: random programs on simulated ranks, with a known fault or none, as the evidence a recorder would leave.

The simulator knows nothing of the diagnosis.  It plays what torch.distributed does: a collective completes when all members of
its group have entered their operation with the same sequence number; ranks whose operations differ wait for ever, unless the
bytes on the wire would fit, in which case the operation completes with garbage, as gloo does.

    python tools/simulated_jobs.py --jobs 10000
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from desync.diagnosis import diagnose
from desync.model import (
    Activity,
    Call,
    CallSite,
    Cause,
    Diagnosis,
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

FILE = "train.py"
WORLD = "default_pg"
START = 1_700_000_000_000_000_000
MILLISECOND = 1_000_000
HANG_AFTER = 10_000 * MILLISECOND


@dataclass(frozen=True)
class Do:
    """One statement of a rank's program."""

    what: str
    """collective, send, recv, mark, raise, kill, exit, stall."""
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


@dataclass(frozen=True)
class Truth:
    """What was done to the job."""

    cause: Cause
    rank: int | None = None
    line: int | None = None
    silent: bool = False
    """The fault may pass without anybody waiting."""


@dataclass
class Plan:
    """A job: its groups, what each rank does, and the truth."""

    groups: dict[str, tuple[int, ...]]
    programs: list[list[Do]]
    truths: list[Truth] = field(default_factory=list)
    loops: tuple[tuple[int, int], ...] = ()


@dataclass
class _Row:
    do: Do
    seq: int
    entered: int
    completed: int = 0
    failed: bool = False


@dataclass
class _Marked:
    do: Do
    at: int
    after: int
    left: bool


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
        self.ended: tuple[str, int] | None = None
        self.stalled = False


class Simulator:
    """Plays a plan until nobody moves any more."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.random = random.Random(seed)
        self.ranks = [_Rank(number, program) for number, program in enumerate(plan.programs)]
        self.board: dict[tuple[str, int], dict[int, _Row]] = defaultdict(dict)
        self.pairs: dict[tuple[str, int, int, int], dict[str, _Row]] = defaultdict(dict)

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
            rank.marks.append(_Marked(do, rank.clock, len(rank.rows), left=do.mark is not MarkKind.BACKWARD))
        elif do.what == "stall":
            rank.stalled = True
        else:
            rank.ended = (do.what, rank.clock)

    def _collective(self, rank: _Rank, do: Do) -> None:
        rank.seqs[do.group] += 1
        row = _Row(do, rank.seqs[do.group], rank.clock)
        rank.rows.append(row)
        here = self.board[(do.group, row.seq)]
        here[rank.number] = row
        if not do.is_async:
            rank.blocked = row
        if len(here) == len(self.plan.groups[do.group]) and self._fits(list(here.values())):
            done = max(each.entered for each in here.values()) + MILLISECOND
            for each in here.values():
                each.completed = done

    def _wait(self, rank: _Rank) -> None:
        open_rows = [row for row in rank.rows if row.do.is_async and not row.completed]
        if open_rows:
            rank.blocked = open_rows[0]
            rank.at -= 1
            return
        for marked in rank.marks:
            marked.left = True  # backward is over

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
    activities = {}
    for rank in ranks:
        if now > simulator.end and rank.ended is None:
            activities[rank.number] = Activity(rank.number, Motion.FROZEN, since=rank.clock)
    return Evidence(
        job=Job(world_size=len(ranks)),
        traces=traces,
        activities=activities,
        observed_at=now,
        hang_after_ns=HANG_AFTER,
        loops={FILE: plan.loops} if plan.loops else {},
    )


def _trace(plan: Plan, rank: _Rank, now: int, drop: int) -> Trace:
    rows = [row for row in rank.rows if row.entered <= now]
    drop = min(drop, len(rows))
    seen = [marked for marked in rank.marks if marked.at <= now]
    marks = tuple(_mark(marked) for marked in seen if marked.after >= drop)
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


def _end(ended: tuple[str, int] | None, operations: int) -> tuple[Exit | None, Mark | None]:
    if ended is None:
        return None, None
    what, at = ended
    if what == "kill":
        return Exit(at, -9), None
    if what == "exit":
        return Exit(at, 0, announced=True), None
    failure = Failure("ValueError", "bad value", (Frame("main", FILE, 1),))
    return Exit(at + MILLISECOND, 1, announced=True), Mark(
        MarkKind.EXCEPTION, at, after=operations, failure=failure, site=CallSite((Frame("main", FILE, 1),))
    )


def _mark(marked: _Marked) -> Mark:
    do = marked.do
    assert do.mark is not None
    return Mark(do.mark, marked.at, left=marked.at if marked.left else None, value=do.value, after=marked.after)


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
        columns["completed"].append(row.completed if row.completed <= now else 0)
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


# --- random programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Body:
    """A random loop: what every rank does before it, in each turn, and after it."""

    before: tuple[Do, ...]
    turn: tuple[Do, ...]
    after: tuple[Do, ...]
    turns: int
    groups: dict[str, tuple[int, ...]]
    world: int


def random_body(rng: random.Random) -> Body:
    """A random program of 2 to 16 ranks."""
    world = rng.randint(2, 16)
    groups = {WORLD: tuple(range(world))}
    if world >= 4 and rng.random() < 0.6:
        groups["tp"] = tuple(range(world // 2))
        groups["pp"] = tuple(range(world // 2, world))
    if world >= 3 and rng.random() < 0.3:
        groups["odd"] = tuple(rng.sample(range(world), rng.randint(2, world - 1)))
    lines = iter(range(10, 1000, 10))
    before = tuple(_random_collective(rng, groups, next(lines)) for _ in range(rng.randint(0, 2)))
    turn: list[Do] = []
    if rng.random() < 0.7:
        turn += _ddp(rng, next(lines))
    turn += [_random_collective(rng, groups, next(lines)) for _ in range(rng.randint(0 if turn else 1, 4))]
    if rng.random() < 0.3:
        turn.append(Do("ring", line=next(lines), elements=rng.choice((1, 64))))
    after = tuple(_random_collective(rng, {WORLD: groups[WORLD]}, next(lines)) for _ in range(rng.randint(1, 2)))
    return Body(before, tuple(turn), after, rng.randint(2, 6), groups, world)


def _random_collective(rng: random.Random, groups: dict[str, tuple[int, ...]], line: int) -> Do:
    group = rng.choice(list(groups))
    op = rng.choice(("all_reduce", "all_reduce", "broadcast", "all_gather_into_tensor", "barrier"))
    return Do(
        "collective",
        line,
        group,
        op,
        elements=rng.choice((1, 1, 20, 500)),
        reduce_op="sum" if op == "all_reduce" else None,
        root=groups[group][0] if op == "broadcast" else None,
    )


def _ddp(rng: random.Random, line: int) -> list[Do]:
    buckets = rng.randint(1, 3)
    sizes = rng.sample(range(1000, 2000), buckets)
    steps = [Do("mark", mark=MarkKind.FETCH), Do("mark", mark=MarkKind.FORWARD, value="sync")]
    steps.append(Do("mark", mark=MarkKind.BACKWARD))
    for number, size in enumerate(sizes):
        bucket = Do("collective", line, elements=size, reduce_op="sum", is_async=True, bucket=f"DDP bucket {number}")
        steps.append(bucket)
    return [*steps, Do("wait"), Do("mark", mark=MarkKind.STEP)]


def write_out(body: Body) -> list[list[Do]]:
    """The program of every rank."""
    return [list(_rank_program(body, rank, body.turns)) for rank in range(body.world)]


def _rank_program(body: Body, rank: int, turns: int) -> Iterator[Do]:
    yield from _mine(body, rank, body.before, 0)
    for turn in range(turns):
        yield from _mine(body, rank, body.turn, turn)
    if any(do.mark is MarkKind.FETCH for do in body.turn):
        yield Do("mark", mark=MarkKind.EXHAUSTED, value=turns)
    yield from _mine(body, rank, body.after, 0)


def _mine(body: Body, rank: int, steps: tuple[Do, ...], turn: int) -> Iterator[Do]:
    for do in steps:
        if do.what == "ring":
            yield from _ring(body, rank, do)
        elif do.mark is MarkKind.FETCH:
            yield replace(do, value=turn + 1)
        elif do.what != "collective" or rank in body.groups[do.group]:
            yield do


def _ring(body: Body, rank: int, do: Do) -> Iterator[Do]:
    """Pass something to the next rank; even ranks send first, so that it never blocks."""
    after, before = (rank + 1) % body.world, (rank - 1) % body.world
    send = replace(do, what="send", peer=after)
    recv = replace(do, what="recv", peer=before, line=do.line + 1)
    if body.world % 2 and rank == body.world - 1:
        yield from (recv, send)
    else:
        yield from (send, recv) if rank % 2 == 0 else (recv, send)


# --- faults ------------------------------------------------------------------------------------------------------------------

ENDS = {"raise": Cause.EXCEPTION, "kill": Cause.KILLED, "exit": Cause.EXITED_EARLY, "stall": Cause.STALLED_RANK}
FAULTS = (*ENDS, "skip", "extra", "shape", "dtype", "uneven", "break", "swap")
EXTRA_LINE = 5000


def plan_of(body: Body, kinds: tuple[str, ...], rng: random.Random) -> Plan | None:
    """The job with these faults on different ranks; None if the program has no place for one of them."""
    programs = write_out(body)
    plan = Plan(dict(body.groups), programs, loops=((100, 4999), (EXTRA_LINE - 1, EXTRA_LINE + 1)))
    plan.loops = _loops(body)
    ranks = rng.sample(range(body.world), len(kinds))
    for kind, rank in zip(kinds, ranks, strict=True):
        truth = _inject(body, programs, kind, rank, rng)
        if truth is None:
            return None
        plan.truths.append(truth)
    return plan


def _loops(body: Body) -> tuple[tuple[int, int], ...]:
    lines = [do.line for do in body.turn if do.line]
    return ((min(lines), max(lines) + 5),)


def _inject(body: Body, programs: list[list[Do]], kind: str, rank: int, rng: random.Random) -> Truth | None:
    program = programs[rank]
    if kind in ENDS:
        at = rng.randrange(len(program))
        program[at:] = [Do(kind)]
        return Truth(ENDS[kind], rank)
    if kind == "uneven":
        return _end_loop(body, programs, rank, rng, exhausted=True)
    if kind == "break":
        return _end_loop(body, programs, rank, rng, exhausted=False)
    places = [
        index
        for index, do in enumerate(program)
        if do.what == "collective" and not do.bucket and any(same.line == do.line for same in body.turn)
    ]
    if not places:
        return None
    at = rng.choice(places)
    return _INJECTIONS[kind](body, program, at, rank, rng)


def _skip(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    do = program.pop(at)
    return Truth(Cause.SKIPPED_COLLECTIVE, rank, do.line)


def _extra(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    line = program[at].line + 5
    program.insert(at + 1, replace(program[at], line=line, elements=rng.choice((program[at].elements, 77))))
    return Truth(Cause.RANK_ONLY_COLLECTIVE, rank, line)


def _shape(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    if program[at].op == "barrier":
        return None
    program[at] = replace(program[at], elements=program[at].elements + 3)
    return Truth(Cause.ARGUMENT_MISMATCH, rank, program[at].line)


def _dtype(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    if program[at].op == "barrier":
        return None
    program[at] = replace(program[at], dtype="int32")
    return Truth(Cause.ARGUMENT_MISMATCH, rank, program[at].line, silent=True)


def _swap(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    if at + 1 >= len(program) or program[at + 1].what != "collective" or program[at + 1].bucket:
        return None
    one, two = program[at], program[at + 1]
    if len(body.groups[one.group]) < 2 or len(body.groups[two.group]) < 2:
        return None
    program[at], program[at + 1] = two, one
    if one.group == two.group:
        return Truth(Cause.ORDER_MISMATCH, rank, two.line, silent=True)
    return Truth(Cause.GROUP_ORDER_CYCLE, rank, two.line, silent=True)


_INJECTIONS = {"skip": _skip, "extra": _extra, "shape": _shape, "dtype": _dtype, "swap": _swap}


def _end_loop(body: Body, programs: list[list[Do]], rank: int, rng: random.Random, exhausted: bool) -> Truth | None:
    if not any(do.mark is MarkKind.FETCH for do in body.turn):
        return None
    turns = rng.randint(1, body.turns - 1)
    program = list(_rank_program(body, rank, turns))
    if not exhausted:
        program = [do for do in program if do.mark is not MarkKind.EXHAUSTED]
    programs[rank][:] = program
    return Truth(Cause.UNEVEN_INPUTS if exhausted else Cause.LEFT_LOOP_EARLY, rank)


# --- judging -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of one job."""

    kinds: tuple[str, ...]
    seed: int
    verdict: str
    """right, near (right rank, another cause), unsure (nobody blamed), late (cut before it showed), innocent."""
    detail: str


def shows(simulator: Simulator, truth: Truth) -> bool:
    """Whether a fault came to pass and somebody noticed."""
    guilty = simulator.ranks[truth.rank or 0]
    if truth.cause in (Cause.EXCEPTION, Cause.KILLED):
        return guilty.ended is not None
    if truth.cause in (Cause.STALLED_RANK, Cause.EXITED_EARLY):
        came = guilty.stalled or guilty.ended is not None
        return came and any(_waits_for(simulator, rank, guilty) for rank in simulator.ranks)
    return not truth.silent


def _waits_for(simulator: Simulator, rank: _Rank, other: _Rank) -> bool:
    row = rank.blocked
    if row is None or row.completed or rank is other:
        return False
    if row.do.peer is not None:
        return row.do.peer == other.number
    return other.number in simulator.plan.groups[row.do.group] and other.seqs[row.do.group] < row.seq


def judge(plan: Plan, diagnosis: Diagnosis, showed: list[Truth]) -> tuple[str, str]:
    """Compare a diagnosis with the truth."""
    guilty = {truth.rank: truth for truth in plan.truths}
    blamed = {rank for finding in diagnosis.findings for rank in finding.culprit_ranks}
    words = "; ".join(f"{f.cause.value} {f.culprit_ranks} {f.summary}" for f in diagnosis.findings)
    if blamed - set(guilty):
        return "innocent", words
    if not diagnosis.findings and not guilty:
        return "right", words
    if not guilty:
        return "innocent", words
    if not blamed:
        return ("unsure" if showed else "late"), words
    missed = [truth for truth in showed if truth.rank not in blamed]
    wrong = [
        finding
        for finding in diagnosis.findings
        for rank in finding.culprit_ranks
        if guilty[rank].cause is not finding.cause
    ]
    if wrong:
        return "near", words
    return ("partly" if missed else "right"), words


def play(seed: int, kinds: tuple[str, ...]) -> Outcome | None:
    """One job: played, observed at its end and at a random point before, judged."""
    rng = random.Random(seed)
    body = random_body(rng)
    if len(kinds) >= body.world:
        return None
    plan = plan_of(body, kinds, rng)
    if plan is None:
        return None
    simulator = Simulator(plan, seed)
    simulator.run()
    cut = rng.random() < 0.3
    until = rng.randint(START, simulator.end) if cut else simulator.end + 1
    longest = max(len(rank.rows) for rank in simulator.ranks)
    dropped = [rng.randint(0, longest // 2) for _ in simulator.ranks] if rng.random() < 0.3 else None
    seen = evidence(simulator, until, dropped)
    showed = [] if cut else [truth for truth in plan.truths if shows(simulator, truth)]
    verdict, detail = judge(plan, diagnose(seen), showed)
    return Outcome(kinds, seed, verdict, detail)


def main() -> int:
    """Play many jobs and print what came of them, by kind of fault."""
    parser = argparse.ArgumentParser(description="Diagnose random simulated jobs with known faults")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="only these faults (none, raise, kill, …)")
    parser.add_argument("--show", help="print the jobs with this outcome", default="innocent")
    arguments = parser.parse_args()
    table: dict[str, Counter[str]] = defaultdict(Counter)
    shapes = [(), *((kind,) for kind in FAULTS), ("pair",)]
    if arguments.kind:
        shapes = [() if kind == "none" else (kind,) for kind in arguments.kind]
    began, played, seed = time.perf_counter(), 0, arguments.seed
    while played < arguments.jobs:
        shape = shapes[seed % len(shapes)]
        kinds = tuple(random.Random(seed).sample(tuple(ENDS), 2)) if shape == ("pair",) else shape
        outcome = play(seed, kinds)
        seed += 1
        if outcome is None:
            continue
        played += 1
        table["+".join(shape) or "none"][outcome.verdict] += 1
        if outcome.verdict == arguments.show:
            print(f"{outcome.verdict}: seed {outcome.seed} {outcome.kinds}: {outcome.detail}")
    columns = ("right", "near", "partly", "unsure", "late", "innocent")
    print(f"| fault | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for kind, counts in table.items():
        print(f"| {kind} | {' | '.join(str(counts[column]) for column in columns)} |")
    print(f"{played} jobs in {time.perf_counter() - began:.1f} s")
    return 1 if any(counts["innocent"] for counts in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
