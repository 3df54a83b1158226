"""Circles: whose marks show that it is past what the others wait for, and who came there on another way than before."""

from __future__ import annotations

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, MarkKind

from .jobs import Op, job, mark, progress, trace

GROUPS = {"default_pg": (0, 1, 2, 3), "tp": (0, 1)}
BUCKET = Op(line=15, bucket="DDP bucket 0: w", is_async=True)
AWAITED = Op(line=15, bucket="DDP bucket 0: w", is_async=True, done=False)
IN_TP = Op(line=20, group="tp")


def backward(number: int, after: int, value: str = "sync"):
    """The forward and the backward of a turn that begin after so many operations."""
    return mark(MarkKind.FORWARD, after, value=value), mark(MarkKind.BACKWARD, after, value=number)


def circle(marks, operations, *, backwards: int = 2):
    """Rank 1 waits in group tp for rank 0, which waits with the others in the bucket of its second backward."""
    turns, early = (*backward(1, 0), *backward(2, 2)), (*backward(1, 0), *backward(2, 1))
    others = [
        trace(0, [BUCKET, IN_TP, AWAITED], groups=GROUPS, marks=turns, progress=progress(backwards=2)),
        *(trace(rank, [BUCKET, AWAITED], groups=GROUPS, marks=early, progress=progress(backwards=2)) for rank in (2, 3)),
    ]
    odd = trace(1, operations, groups=GROUPS, marks=marks, progress=progress(backwards=backwards))
    return diagnose(job(others[0], odd, *others[1:])).findings


HELD = Op(line=20, group="tp", done=False)


def test_a_backward_that_ended_without_its_bucket_explains_a_circle() -> None:
    (finding,) = circle((*backward(1, 0), *backward(2, 2)), [BUCKET, IN_TP, HELD])
    assert (finding.cause, finding.culprit_ranks) == (Cause.UNUSED_PARAMETERS, (1,))
    assert finding.divergence is not None
    assert finding.divergence.op == "all_reduce"


def test_a_forward_under_no_sync_explains_a_circle() -> None:
    (finding,) = circle((*backward(1, 0), *backward(2, 2, "no_sync")), [BUCKET, IN_TP, HELD])
    assert (finding.cause, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, (1,))
    assert "no_sync" in finding.summary


def test_a_circle_of_which_no_mark_tells_stays_a_circle() -> None:
    """Its second backward has not begun: it may have to make its calls in the other order only."""
    (finding,) = circle(backward(1, 0), [BUCKET, IN_TP, HELD], backwards=1)
    assert finding.cause is Cause.GROUP_ORDER_CYCLE


def test_a_backward_that_launched_the_bucket_is_not_one_without_it() -> None:
    """A backward under no_sync long ago: each bucket has met that of another turn since, and at the end one is missing."""
    turns = (*backward(1, 0), *backward(2, 1), *backward(3, 2))
    others = [trace(rank, [BUCKET, BUCKET, AWAITED], marks=turns, progress=progress(backwards=3)) for rank in (0, 1, 3)]
    marks = (*backward(1, 0), *backward(2, 1, "no_sync"), *backward(3, 1))
    odd = trace(2, [BUCKET, BUCKET, Op("barrier", line=40, done=False)], marks=marks, progress=progress(backwards=3))
    (finding,) = diagnose(job(*others[:2], odd, others[2])).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, (2,))
    assert "no_sync" in finding.summary


def crossed(*ways: list[Op]):
    return diagnose(job(*(trace(rank, way, groups=GROUPS) for rank, way in enumerate(ways)))).findings


def test_peers_that_leave_a_call_out_by_right_do_not_speak_for_a_rank_that_has_to_make_it() -> None:
    """Ranks 2 and 3 are no members of tp: that they go from line 10 to line 30 says nothing about rank 1."""
    turn = [Op(line=10), Op(line=20, group="tp"), Op(line=30)]
    rest = [Op(line=10), Op(line=30)]
    in_tp, in_all = Op(line=20, group="tp", done=False), Op(line=30, done=False)
    waiting = [*rest, *rest, Op(line=10), in_all]
    (finding,) = crossed([*turn, *turn, Op(line=10), in_tp], [*turn, *turn, Op(line=10), in_all], waiting, waiting)
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.GROUP_ORDER_CYCLE, (1,), Certainty.LIKELY)
    assert any("did not first make the call of group tp at train.py:20" in line for line in finding.evidence)


def test_a_circle_in_which_an_operation_has_failed_names_who_was_in_it() -> None:
    """As at the end of a job that was ended: the last look at it came after the first rank had got its error."""
    groups = {"default_pg": (0, 1), "a": (0, 1), "b": (0, 1)}
    held = trace(0, [Op(line=10, group="a", done=False)], world=2, groups=groups)
    failed = trace(1, [Op(line=20, group="b", done=False, failed=True)], world=2, groups=groups)
    (finding,) = diagnose(job(held, failed)).findings
    assert finding.cause is Cause.GROUP_ORDER_CYCLE
    assert finding.summary.startswith(("Rank 0 waits in all_reduce #1", "Rank 1 waits in all_reduce #1"))
    assert "; rank " in finding.summary


def test_a_bucket_that_comes_again_is_that_of_the_next_backward() -> None:
    """Between two backwards the rank had always made a call, which it has now left out."""
    bucket = Op(line=15, bucket="DDP bucket 0: w")
    turn = [bucket, Op(line=20, group="tp")]
    again = Op(line=15, bucket="DDP bucket 0: w", done=False)
    waiting = [bucket, bucket, bucket, again]
    in_tp = Op(line=20, group="tp", done=False)
    (finding,) = crossed([*turn, *turn, bucket, in_tp], [*turn, *turn, bucket, again], waiting, waiting)
    assert (finding.cause, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, (1,))
