from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desync.diagnosis.board import lay_out
from desync.diagnosis.claims import interpret
from desync.diagnosis.habits import Change, expected_next, newest_break
from desync.diagnosis.heads import Root, stand
from desync.model import (
    Call,
    CallSite,
    Cause,
    Certainty,
    Claim,
    ClaimKind,
    Evidence,
    Frame,
    Group,
    Job,
    Kind,
    OperationTable,
    Status,
    Tensors,
    Trace,
)

WORLD = 4
GROUPS = {"0": Group("0", (0, 1, 2, 3), "default_pg"), "1": Group("1", (0, 1), "PAIR"), "2": Group("2", (2, 3), "PAIR")}


def call(name: str, line: int = 1, size: int = 8) -> Call:
    site = CallSite((Frame("step", "/job/train.py", line),))
    return Call(name, Kind.COLLECTIVE, inputs=Tensors(((size,),), ("float32",)), site=site)


def trace(rank: int, operations: Sequence[tuple[str, Call]], done: int, first: int = 1) -> Trace:
    """A rank that has called these (group, call), of which the first `done` are over."""
    calls = list(dict.fromkeys(each for _, each in operations))
    names = list(dict.fromkeys(group for group, _ in operations)) or ["0"]
    counts = dict.fromkeys(names, first - 1)
    seqs = []
    for group, _ in operations:
        counts[group] += 1
        seqs.append(counts[group])
    size = len(operations)
    table = OperationTable(
        calls=tuple(calls),
        groups=tuple(names),
        call=array("q", [calls.index(each) for _, each in operations]),
        group=array("q", [names.index(group) for group, _ in operations]),
        seq=array("q", seqs),
        thread=array("q", [0] * size),
        entered=array("q", [1000 + index for index in range(size)]),
        returned=array("q", [0] * size),
        completed=array("q", [5000 + index if index < done else 0 for index in range(size)]),
    )
    mine = {name: group for name, group in GROUPS.items() if rank in group.ranks}
    return Trace(rank, table, groups=mine, world_size=WORLD)


def evidence(*traces: Trace, claims: tuple[Claim, ...] = ()) -> Evidence:
    return Evidence(job=Job(world_size=WORLD), traces=traces, claims=claims)


def pair(rank: int) -> str:
    return "1" if rank < 2 else "2"


def step(rank: int, *, swapped: bool = False) -> list[tuple[str, Call]]:
    """Two calls in the pair's group, one in the world's."""
    inner, outer = (pair(rank), call("all_gather", 10)), ("0", call("all_reduce", 20))
    return [(pair(rank), call("all_gather", 5)), *((outer, inner) if swapped else (inner, outer))]


def test_a_rank_waits_for_whom_its_head_waits_for_and_not_for_what_lies_behind_it() -> None:
    # Ranks 0 to 2 have called everything; rank 3 stands outside: 2 waits for it in the pair, the others for both in the world.
    traces = [trace(rank, [*step(rank), *step(rank)], done=5) for rank in (0, 1)]
    traces += [trace(2, [*step(2), *step(2)], done=3), trace(3, step(3), done=3)]
    found = stand(lay_out(evidence(*traces)))
    assert {rank: head.operation.seq for rank, head in found.heads.items()} == {0: 2, 1: 2, 2: 3}
    assert {rank for ranks in found.roots[Root.IDLE].values() for rank in ranks} == {3}
    (finding,) = interpret(evidence(*traces)).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (3,))
    assert finding.divergence is not None
    # It would have come to the pair's operation before the world's.
    assert finding.divergence.group.name == "2"


def test_two_groups_in_opposite_order_are_a_circle_and_the_odd_one_is_named() -> None:
    history = [each for _ in range(40) for each in step(0)]
    normal = {rank: [(pair(rank) if group != "0" else "0", made) for group, made in history] for rank in range(4)}
    traces = []
    for rank in range(4):
        last = step(rank, swapped=rank == 1)
        # Rank 1 is in the world's, rank 0 in the pair's; 2 and 3 are in the world's.
        done = len(history) + (1 if rank < 2 else 2)
        traces.append(trace(rank, [*normal[rank], *last], done=done))
    (finding,) = interpret(evidence(*traces)).findings
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.GROUP_ORDER_CYCLE, (1,), Status.HANG)


LEFT_OUT, PUT_IN, OTHER = "left out", "put in", "arguments"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from([LEFT_OUT, PUT_IN, OTHER]), after=st.integers(4, 12))
def test_the_newest_break_with_a_ranks_habits_is_found_in_any_program(seed: int, kind: str, after: int) -> None:
    random_ = random.Random(seed)
    period = [("0", call("all_reduce", line)) for line in random_.sample(range(100), random_.randrange(12, 30))]
    place = random_.randrange(2, len(period) - 2)
    rest = [*period[place + 1 :], *period][:after]
    changed = {
        LEFT_OUT: [],
        PUT_IN: [period[place], ("0", call("all_gather", 777))],
        OTHER: [("0", call("all_reduce", size=9, line=3))],
    }
    operations = [*(period * 12), *period[:place], *changed[kind], *rest]
    broken = newest_break(trace(0, operations, done=len(operations)))
    assert broken is not None
    assert broken.length == after
    expected = {LEFT_OUT: Change.LEFT_OUT, PUT_IN: Change.PUT_IN, OTHER: Change.OTHER_ARGUMENTS}[kind]
    assert broken.change is expected
    where = len(period) * 12 + place + (2 if kind == PUT_IN else 1)
    assert broken.seq == where
    if kind == LEFT_OUT:
        assert broken.operation.call == period[place][1]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 60))
def test_a_rank_that_only_does_what_it_always_did_has_broken_nothing(seed: int, cut: int) -> None:
    random_ = random.Random(seed)
    period = [("0", call("all_reduce", random_.randrange(6))) for _ in range(random_.randrange(5, 20))]
    operations = (period * 40)[cut : 40 * len(period) - random_.randrange(len(period))]
    broken = newest_break(trace(0, operations, done=len(operations)))
    assert broken is None or broken.change is Change.OTHER
    following = expected_next(trace(0, operations[:-1], done=len(operations) - 1))
    assert following is not None
    assert following.call == operations[-1][1]


def test_with_little_known_there_are_no_habits() -> None:
    assert newest_break(trace(0, step(0) * 5, done=15)) is None
    assert expected_next(trace(0, step(0)[:2], done=2)) is None


def waiting(absent: int) -> list[Trace]:
    return [trace(rank, [("0", call("all_reduce"))] * 3, done=2) for rank in range(4) if rank != absent] + [
        trace(absent, [("0", call("all_reduce"))] * 2, done=2)
    ]


@pytest.mark.parametrize(
    ("claim", "cause", "certainty"),
    [
        (Claim(ClaimKind.MOVING, (2,), "85% then 91%"), Cause.SLOW_RANK, Certainty.LIKELY),
        (Claim(ClaimKind.OUT_OF_MEMORY, (2,), "CUDA out of memory"), Cause.OUT_OF_MEMORY, Certainty.LIKELY),
        (Claim(ClaimKind.MOVING, (1,), "85% then 91%"), Cause.STALLED_RANK, Certainty.LIKELY),
        (Claim(ClaimKind.NETWORK, (0,), "port error"), Cause.STALLED_RANK, Certainty.LIKELY),
        (Claim(ClaimKind.RENDEZVOUS, (3,), "3 of 4"), Cause.STALLED_RANK, Certainty.LIKELY),
        (Claim(ClaimKind.ABSENT, (0,), "rank 0 is late", op="barrier"), Cause.STALLED_RANK, Certainty.LIKELY),
    ],
)
def test_what_messages_say_explains_what_records_show_and_never_overrules_it(
    claim: Claim, cause: Cause, certainty: Certainty
) -> None:
    (finding,) = interpret(evidence(*waiting(2), claims=(claim,))).findings
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (cause, certainty, (2,))


def test_the_same_evidence_gives_the_same_answer() -> None:
    made = evidence(*waiting(1))
    assert interpret(made) == interpret(replace(made))


@pytest.mark.parametrize(("last", "cause"), [("broadcast", Cause.UNKNOWN), ("all_reduce", Cause.STALLED_RANK)])
def test_who_is_through_with_a_broadcast_says_nothing_of_the_devices_of_the_others(last: str, cause: Cause) -> None:
    # Rank 0 is in an all_gather already, 1 and 2 are held in what came two calls before; nothing is known of rank 3.
    made = [("0", call("broadcast")), ("0", call(last)), ("0", call("all_gather"))]
    found = evidence(trace(0, made, done=2), trace(1, made, done=0), trace(2, made, done=0))
    (finding,) = interpret(found).findings
    assert (finding.cause, finding.culprit_ranks) == (cause, (3,) if cause is Cause.UNKNOWN else (1, 2))
