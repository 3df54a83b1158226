"""Circles of jobs that were seen once, and jobs of which some ranks left no record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from desync.diagnosis.claims import interpret
from desync.diagnosis.habits import Change, newest_break
from desync.model import Call, Cause, Certainty, Claim, ClaimKind, Finding, OperationState, Status, Trace

from .test_aftermath import call, evidence, pair, step, trace


def only(*traces: Trace, claims: tuple[Claim, ...] = ()) -> Finding:
    (finding,) = interpret(evidence(*traces, claims=claims)).findings
    return finding


@pytest.mark.parametrize("odd", [0, 1])
def test_of_two_sides_in_opposite_order_that_is_wrong_which_others_do_not_take(odd: int) -> None:
    # No history: what ranks 2 and 3 did with their own pair, at the same numbers, tells.
    traces = [trace(rank, step(rank, swapped=rank == odd), done=1) for rank in (0, 1)]
    traces += [trace(rank, step(rank), done=2) for rank in (2, 3)]
    finding = only(*traces)
    assert (finding.cause, finding.culprit_ranks) == (Cause.GROUP_ORDER_CYCLE, (odd,))


def test_with_nobody_in_the_same_place_an_opposite_order_blames_no_side() -> None:
    other = [("0", call("broadcast", 3)), (pair(2), call("gather", 4))]
    traces = [trace(rank, step(rank, swapped=rank == 0), done=1) for rank in (0, 1)]
    traces += [trace(rank, [*step(rank)[:1], *other[:1]], done=1) for rank in (2, 3)]
    finding = only(*traces)
    assert finding.culprit_ranks == ()


def test_an_operation_that_all_members_are_in_stands_for_itself_whoever_left_no_record() -> None:
    # Ranks 0 and 1 are both in their pair's operation; rank 3 left nothing and may only wait, as rank 2 does.
    traces = [trace(rank, [(pair(rank), call("all_gather"))], done=0) for rank in (0, 1)]
    finding = only(*traces, trace(2, [("0", call("all_reduce"))], done=0))
    assert (finding.cause, finding.culprit_ranks) == (Cause.COMMUNICATION_STALLED, ())


def test_a_rank_without_a_record_may_be_named_and_one_that_is_excused_may_not() -> None:
    traces = [trace(rank, [("0", call("all_reduce"))], done=0) for rank in (0, 1, 2)]
    finding = only(*traces)
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.UNKNOWN, (3,), Certainty.POSSIBLE)
    excused = only(*traces, claims=(Claim(ClaimKind.PRESENT, (3,), "folded away"),))
    assert (excused.status, excused.culprit_ranks) == (Status.HANG, ())
    # One rank alone says nothing of three others.
    assert only(traces[0]).culprit_ranks == ()


Calls = list[tuple[str, Call]]
PERIOD: Calls = [
    ("1", call("all_gather", 10)),
    ("1", call("reduce_scatter", 11)),
    ("0", call("all_reduce", 12)),
    ("1", call("gather", 13)),
]
BARE = [(group, replace(each, site=None)) for group, each in PERIOD]
"""The same without the lines of the calls."""


def pair_of(changed: Calls, usual: Calls) -> list[Trace]:
    """Ranks 0 and 1 after a long past, the beginning of which is lost: what rank 0 did last, and what rank 1 did."""
    past = BARE * 40
    made = (trace(rank, [*past, *last], done=len(past)) for rank, last in ((0, changed), (1, usual)))
    return [replace(each, dropped=1000) for each in made]


@pytest.mark.parametrize(
    ("changed", "cause", "seq"),
    [
        ([*BARE[1:], *BARE, *BARE[:2]], Cause.SKIPPED_COLLECTIVE, 121),
        ([("1", replace(call("scatter"), site=None)), *BARE, *BARE], Cause.RANK_ONLY_COLLECTIVE, 121),
    ],
)
def test_of_two_ranks_that_differ_the_one_that_breaks_with_its_habits_is_wrong(changed: Calls, cause: Cause, seq: int) -> None:
    finding = only(*pair_of(changed, [*BARE, *BARE]))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (cause, (0,), Certainty.LIKELY)
    where = finding.divergence
    assert where is not None
    assert (where.op, where.seq) == ("all_gather", seq)  # what the other one does there
    assert where.by_rank[0].state is OperationState.MISMATCHED
    assert where.by_rank[1].state is OperationState.WAITING


def test_a_newest_operation_with_other_arguments_is_no_new_operation() -> None:
    past = PERIOD * 40
    other = newest_break(trace(0, [*past, ("1", call("all_gather", 10, size=9))], done=len(past)))
    assert other is not None
    assert other.change is Change.OTHER_ARGUMENTS
    new = newest_break(trace(0, [*past, ("1", call("scatter", 99))], done=len(past)))
    assert new is not None
    assert new.change is Change.PUT_IN


def test_of_several_alike_in_a_row_the_last_is_missing_unless_more_of_them_came() -> None:
    alike = ("0", call("all_reduce", 12))
    period = [("1", call("all_gather", 10)), alike, alike, ("1", call("gather", 13)), ("1", call("scatter", 14))]
    past = period * 40
    broken = newest_break(trace(0, [*past, *period[:2], *period[3:], period[0]], done=len(past)))
    assert broken is not None
    assert (broken.change, broken.seq) == (Change.LEFT_OUT, 82)
    more = newest_break(trace(0, [*past, *period[:2], *period[3:], *period[:2]], done=len(past)))
    assert more is not None
    assert (more.change, more.seq) == (Change.LEFT_OUT, 81)
