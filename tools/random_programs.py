"""Random programs of two to sixteen ranks, and the faults that can be put into them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator import WORLD, Do, Plan, Truth

from desync.model import Cause, MarkKind


@dataclass(frozen=True)
class Body:
    """A random loop: what every rank does before it, in each turn, and after it."""

    before: tuple[Do, ...]
    turn: tuple[Do, ...]
    after: tuple[Do, ...]
    turns: int
    groups: dict[str, tuple[int, ...]]
    world: int


def random_body(rng: random.Random, turns: tuple[int, int] = (2, 6)) -> Body:
    """A random program of 2 to 16 ranks, whose loop has between so many and so many turns."""
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
    return Body(before, tuple(turn), after, rng.randint(*turns), groups, world)


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

ENDS = {
    "raise": Cause.EXCEPTION,
    "memory": Cause.OUT_OF_MEMORY,
    "kill": Cause.KILLED,
    "exit": Cause.EXITED_EARLY,
    "stall": Cause.STALLED_RANK,
    "work": Cause.SLOW_RANK,
}
"""Faults that can strike a rank at any statement."""
STRIKES = {"memory": Do("raise", line=8000, words="CUDA out of memory. Tried to allocate 20.00 MiB")}
LOOPS = ("uneven", "break", "unused", "no_sync")
"""Faults in the turns of a loop with data and a model in it."""
PAIRS = ("unsent", "unreceived")
FAULTS = (*ENDS, "skip", "extra", "shape", "dtype", "reduce_op", "root", "swap", *LOOPS, *PAIRS)
UNUSED = "Expected to have finished reduction in the prior iteration before starting a new one."
EXTRA = 5
"""How many lines behind the call that it repeats an extra call stands."""


def plan_of(body: Body, kinds: tuple[str, ...], rng: random.Random) -> Plan | None:
    """The job with these faults on different ranks; None if the program has no place for one of them."""
    programs = write_out(body)
    if rng.random() < 0.3:
        # Somebody takes a rest, longer than a hang has to last, and comes back.
        program = rng.choice(programs)
        program.insert(rng.randrange(len(program)), Do("pause"))
    plan = Plan(dict(body.groups), programs, loops=_loops(body), eager=rng.random() < 0.5)
    ranks = rng.sample(range(body.world), len(kinds))
    for kind, rank in zip(kinds, ranks, strict=True):
        truth = _inject(body, programs, kind, rank, rng)
        if truth is None:
            return None
        if kind == "root" and plan.eager and any(do.root == rank for do in programs[rank]):
            truth = replace(truth, silent=True)  # a source waits for nobody
        plan.truths.append(truth)
    return plan


def _loops(body: Body) -> tuple[tuple[int, int], ...]:
    lines = [do.line for do in body.turn if do.line]
    return ((min(lines), max(lines) + EXTRA),)


def _inject(body: Body, programs: list[list[Do]], kind: str, rank: int, rng: random.Random) -> Truth | None:
    program = programs[rank]
    if kind in ENDS:
        at = rng.randrange(len(program))
        program[at:] = [STRIKES.get(kind, Do(kind))]
        return Truth(ENDS[kind], rank, at=at)
    if kind in ("uneven", "break"):
        return _end_loop(body, program, rank, rng, exhausted=kind == "uneven")
    if kind in ("unused", "no_sync"):
        return _without_gradients(program, rank, rng, unused=kind == "unused")
    if kind in PAIRS:
        return _unpaired(program, rank, rng, "send" if kind == "unsent" else "recv")
    places = [
        index
        for index, do in enumerate(program)
        if do.what == "collective" and not do.bucket and any(same.line == do.line for same in body.turn)
    ]
    if not places:
        return None
    at = rng.choice(places)
    return _swap(body, programs, at, rank, rng) if kind == "swap" else _INJECTIONS[kind](body, program, at, rank, rng)


def _skip(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    do = program.pop(at)
    following = next((each for each in program[at:] if each.what == "collective"), do)
    swapped = Cause.ORDER_MISMATCH if following.group == do.group else Cause.GROUP_ORDER_CYCLE
    return Truth(Cause.SKIPPED_COLLECTIVE, rank, do.line, at=at, alike=swapped)


def _extra(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    line = program[at].line + EXTRA
    program.insert(at + 1, replace(program[at], line=line, elements=rng.choice((program[at].elements, 77))))
    return Truth(Cause.RANK_ONLY_COLLECTIVE, rank, line, at=at + 1)


def _shape(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    if program[at].op == "barrier":
        return None
    program[at] = replace(program[at], elements=program[at].elements + 3)
    return Truth(Cause.ARGUMENT_MISMATCH, rank, program[at].line, at=at)


def _dtype(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    if program[at].op == "barrier":
        return None
    program[at] = replace(program[at], dtype="int32")
    return Truth(Cause.ARGUMENT_MISMATCH, rank, program[at].line, silent=True, at=at)


def _reduce_op(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    if program[at].op != "all_reduce":
        return None
    program[at] = replace(program[at], reduce_op="max")
    return Truth(Cause.ARGUMENT_MISMATCH, rank, program[at].line, silent=True, at=at)


def _root(body: Body, program: list[Do], at: int, rank: int, rng: random.Random) -> Truth | None:
    do = program[at]
    others = [member for member in body.groups[do.group] if member != do.root]
    if do.op != "broadcast" or not others:
        return None
    program[at] = replace(do, root=rng.choice(others))
    return Truth(Cause.ARGUMENT_MISMATCH, rank, do.line, at=at)


def _swap(body: Body, programs: list[list[Do]], at: int, rank: int, rng: random.Random) -> Truth | None:
    program = programs[rank]
    if at + 1 >= len(program) or program[at + 1].what != "collective" or program[at + 1].bucket:
        return None
    one, two = program[at], program[at + 1]
    if len(body.groups[one.group]) < 2 or len(body.groups[two.group]) < 2 or one.line == two.line:
        return None
    if rng.random() < 0.5:
        _begin_both(programs, one.line, two.line)
        at = next(index for index in range(at, len(program)) if program[index].line == one.line)
        if at + 1 >= len(program) or program[at + 1].line != two.line:
            return None
    program[at], program[at + 1] = program[at + 1], program[at]
    cause = Cause.ORDER_MISMATCH if one.group == two.group else Cause.GROUP_ORDER_CYCLE
    return Truth(cause, rank, two.line, silent=True, at=at, alike=Cause.SKIPPED_COLLECTIVE)


def _begin_both(programs: list[list[Do]], one: int, two: int) -> None:
    """Make both calls asynchronous in every turn of every rank, and wait for both after them."""
    for program in programs:
        for index in range(len(program) - 1, -1, -1):
            do = program[index]
            if do.line in (one, two):
                program[index] = replace(do, is_async=True)
                if do.line == two or not any(each.line == two for each in program[index + 1 : index + 2]):
                    program.insert(index + 1, Do("wait"))


_INJECTIONS = {
    "skip": _skip,
    "extra": _extra,
    "shape": _shape,
    "dtype": _dtype,
    "reduce_op": _reduce_op,
    "root": _root,
}


def _end_loop(body: Body, program: list[Do], rank: int, rng: random.Random, exhausted: bool) -> Truth | None:
    if not any(do.mark is MarkKind.FETCH for do in body.turn):
        return None
    shorter = list(_rank_program(body, rank, rng.randint(1, body.turns - 1)))
    if not exhausted:
        shorter = [do for do in shorter if do.mark is not MarkKind.EXHAUSTED]
    same = (index for index, (one, other) in enumerate(zip(program, shorter, strict=False)) if one != other)
    at = next(same, len(shorter))
    program[:] = shorter
    return Truth(Cause.UNEVEN_INPUTS if exhausted else Cause.LEFT_LOOP_EARLY, rank, at=at)


def _without_gradients(program: list[Do], rank: int, rng: random.Random, unused: bool) -> Truth | None:
    """A step whose last bucket never got its gradients, or one under no_sync(), which has no buckets at all."""
    forwards = [index for index, do in enumerate(program) if do.mark is MarkKind.FORWARD]
    if not forwards:
        return None
    forward = rng.choice(forwards)
    end = next(index for index in range(forward, len(program)) if program[index].what == "wait")
    buckets = [index for index in range(forward, end) if program[index].bucket]
    for index in reversed(buckets[-1:] if unused else buckets):
        del program[index]
    if unused:
        # DDP says so when the next forward begins.
        following = next((index for index in range(forward + 1, len(program)) if program[index].mark is MarkKind.FORWARD), None)
        if following is not None:
            program[following:] = [Do("raise", line=8001, words=UNUSED)]
        return Truth(Cause.UNUSED_PARAMETERS, rank, at=buckets[-1])
    program[forward] = replace(program[forward], value="no_sync")
    return Truth(Cause.SKIPPED_COLLECTIVE, rank, at=forward)


def _unpaired(program: list[Do], rank: int, rng: random.Random, what: str) -> Truth | None:
    places = [index for index, do in enumerate(program) if do.what == what]
    if not places:
        return None
    at = rng.choice(places)
    do = program.pop(at)
    return Truth(Cause.P2P_MISMATCH, rank, do.line, at=at)
