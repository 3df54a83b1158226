"""A job that was told to end: by its user, by its scheduler, or by desync itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from desync.diagnosis import diagnose
from desync.diagnosis.claims import interpret
from desync.model import Cause, Certainty, Evidence, Failure, Frame, OperationState, RankState, Status, Trace

from .jobs import HANG_AFTER, MS, START, Op, job, left, raised, trace

STEPS = [Op(), Op()]
WAITS = [*STEPS, Op(done=False)]
FAILS = [*STEPS, Op(done=False, failed=True)]
READERS = [diagnose, interpret]


def terminated(rank: int, operations: list[Op], **fields) -> Trace:
    return trace(rank, operations, exit=left(60_000, -15, announced=False), **fields)


def interrupted(rank: int, operations: list[Op], line: int) -> Trace:
    error = Failure("KeyboardInterrupt", "", (Frame("step", "train.py", line),))
    return trace(rank, operations, exit=left(60_000, 1), marks=(replace(raised("", 60_000), failure=error),))


def told(*traces: Trace, after_ms: int) -> Evidence:
    """A job that was told to end so long after its third operation, and whose ranks ended a minute after its start."""
    evidence = job(*traces, later_ms=60_000, ended=True)
    return replace(evidence, job=replace(evidence.job, told_to_end=START + (2 + after_ms) * MS, exit_code=1))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "third",
    [
        terminated(3, STEPS),
        terminated(3, [*STEPS, Op(), Op(done=False)]),
        interrupted(3, FAILS, 7),
        trace(3, STEPS, exit=left(60_000, -11, announced=False)),
        trace(3, STEPS, exit=left(60_000, 0)),
    ],
    ids=["on its way", "ahead", "interrupted", "crashes at its end", "ends well"],
)
def test_a_job_that_was_well_gets_no_finding(reader, third):
    diagnosis = reader(told(terminated(0, WAITS), interrupted(1, FAILS, 7), terminated(2, FAILS), third, after_ms=1500))
    assert (diagnosis.findings, diagnosis.status, diagnosis.awaiting) == ((), Status.HEALTHY, {})
    assert diagnosis.states[0] is RankState.KILLED
    assert diagnosis.states[1] is RankState.RAISED


@pytest.mark.parametrize("reader", READERS)
def test_a_long_wait_is_told_and_nobody_blamed(reader):
    ranks = [interrupted(rank, WAITS, 10) for rank in range(3)]
    diagnosis = reader(told(*ranks, interrupted(3, STEPS, 77), after_ms=4000))
    (finding,) = diagnosis.findings
    assert (finding.status, finding.cause, finding.certainty) == (Status.UNKNOWN, Cause.UNKNOWN, Certainty.POSSIBLE)
    assert finding.culprit_ranks == ()
    assert "for 4.0 s when the job was told to end, and rank 3 was not there yet" in finding.summary
    assert finding.evidence == ("rank 3 was interrupted at train.py:77 in step",)
    assert finding.divergence is not None
    assert finding.divergence.by_rank[3].state is OperationState.ABSENT
    assert "longer than 10 s" in finding.advice


def test_a_long_wait_of_all_is_told_as_well():
    (finding,) = diagnose(told(*(terminated(rank, WAITS) for rank in range(4)), after_ms=3000)).findings
    assert finding.summary.startswith("Ranks 0-3 had been in all_reduce #3")
    assert "not there" not in finding.summary
    assert finding.status is Status.UNKNOWN


def test_who_was_waited_for_longer_than_the_user_grants():
    ranks = [terminated(rank, WAITS) for rank in range(3)]
    evidence = told(*ranks, terminated(3, STEPS), after_ms=HANG_AFTER // MS + 3)
    (finding,) = diagnose(evidence).findings
    assert (finding.status, finding.culprit_ranks) == (Status.UNKNOWN, ()), "nobody saw whether it moved"
    assert "what held it up was not seen" in finding.summary
    (finding,) = interpret(evidence).findings
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.STALLED_RANK, (3,))
    assert finding.certainty is Certainty.LIKELY


@pytest.mark.parametrize("reader", READERS)
def test_what_is_wrong_whatever_comes_later_is_still_found(reader):
    ranks = [terminated(rank, WAITS) for rank in range(3)]
    (finding,) = reader(told(*ranks, terminated(3, [*STEPS, Op("broadcast", 20, root=0, done=False)]), after_ms=100)).findings
    assert (finding.status, finding.culprit_ranks) == (Status.HANG, (3,))


@pytest.mark.parametrize("reader", READERS)
def test_who_was_gone_before_is_at_fault(reader):
    gone = trace(3, STEPS, exit=left(50, -11, announced=False))
    (finding,) = reader(told(*(terminated(rank, WAITS) for rank in range(3)), gone, after_ms=100)).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.KILLED, (3,))


def test_a_sigterm_of_which_nobody_knows_whence_it_came_is_called_that():
    evidence = told(*(terminated(rank, FAILS) for rank in range(2)), after_ms=0)
    (finding,) = diagnose(replace(evidence, job=replace(evidence.job, told_to_end=None))).findings
    assert finding.summary == "Ranks 0-1 were ended with SIGTERM; who sent it was not seen."
    assert (finding.status, finding.culprit_ranks) == (Status.UNKNOWN, ())
