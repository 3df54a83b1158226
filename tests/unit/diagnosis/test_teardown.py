from __future__ import annotations

from dataclasses import replace

import pytest

from desync.diagnosis import diagnose
from desync.model import Activity, Cause, Certainty, Evidence, Exit, Frame, Motion, RankStacks, Stack, Status, Trace

from .jobs import HANG_AFTER, MS, START, Op, job, left, progress, raised, trace

STEPS = [Op(), Op()]
DONE = [*STEPS, Op("destroy_process_group", line=50)]
DESTROYS = [*STEPS, Op("destroy_process_group", line=50, done=False)]
OVER = START + 4 * MS
IN_WRITE = Stack("writer", (Frame("write", "train.py", 77), Frame("run", "threading.py", 1)))
WRITER = RankStacks(3, "py-spy", None, (Stack("MainThread", ()), IN_WRITE))


def ended(*ranks: int, operations: list[Op] = DONE) -> list[Trace]:
    return [trace(rank, operations, exit=left(5), finished=OVER) for rank in ranks]


def lingers(rank: int, operations: list[Op] = DONE, finished: int | None = OVER, exit_: Exit | None = None) -> Trace:
    return trace(rank, operations, finished=finished, exit=exit_)


def one(evidence: Evidence):
    (finding,) = diagnose(evidence).findings
    return finding


def quiet(evidence: Evidence) -> tuple[int, ...]:
    diagnosis = diagnose(evidence)
    assert (diagnosis.findings, diagnosis.status) == ((), Status.HEALTHY)
    return diagnosis.lingering


def test_a_rank_whose_program_is_over_and_that_does_not_end():
    evidence = replace(job(*ended(0, 1, 2), lingers(3), frozen=(3,)), stacks=(WRITER,))
    finding = one(evidence)
    assert (finding.status, finding.cause, finding.certainty) == (Status.HANG, Cause.TEARDOWN, Certainty.LIKELY)
    assert finding.culprit_ranks == (3,)
    assert "writer is in write, train.py:77" in finding.summary
    assert "ranks 0-2 have ended" in finding.summary
    assert finding.divergence is None


def test_a_rank_that_never_destroyed_its_group_is_told_by_the_others_who_have_left():
    finding = one(job(*ended(0, 1, 2), lingers(3, STEPS), frozen=(3,)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.TEARDOWN, (3,))


@pytest.mark.parametrize(
    "linger",
    [lingers(3), lingers(3, STEPS, finished=None), lingers(3, DESTROYS, finished=None), lingers(3, exit_=left(5, None))],
    ids=["over", "alone", "destroying", "exiting"],
)
def test_a_rank_that_still_works_after_the_end_is_left_in_peace(linger):
    assert 3 in quiet(job(*ended(0, 1, 2), linger, moving=(3,)))


def test_one_in_its_own_code_is_granted_more_time_and_is_never_more_than_possible():
    def at(share: float) -> Evidence:
        later = 5 + round(share * HANG_AFTER / MS)
        return job(*ended(0, 1, 2), lingers(3, STEPS, finished=None), frozen=(3,), later_ms=later)

    assert quiet(at(2.5)) == (3,)
    finding = one(at(3.5))
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (Cause.TEARDOWN, Certainty.POSSIBLE, (3,))


def test_nothing_is_said_while_a_rank_is_not_known_to_be_done():
    working = trace(2, STEPS)
    assert quiet(job(*ended(0, 1), working, lingers(3), frozen=(2, 3))) == ()


def test_nothing_is_said_where_a_rank_was_never_seen():
    evidence = job(*ended(0, 1), lingers(3), frozen=(3,))
    assert quiet(replace(evidence, job=replace(evidence.job, world_size=4))) == ()


def test_main_threads_that_leave_their_threads_to_serve_are_no_hang():
    """All main threads are over, nobody has left, no group was destroyed: threads may wait for requests."""
    assert quiet(job(*(lingers(rank, STEPS) for rank in range(4)), frozen=range(4))) == ()


def test_operations_after_the_end_of_the_main_thread_show_that_others_work():
    early = lingers(3, STEPS, finished=START)
    assert quiet(job(*(lingers(rank, STEPS, finished=START) for rank in range(3)), early, frozen=range(4))) == ()


def test_where_all_hang_in_destroy_nobody_is_blamed():
    finding = one(job(*(lingers(rank, DESTROYS, finished=None) for rank in range(4)), frozen=range(4)))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.TEARDOWN, (), Certainty.POSSIBLE)
    assert "train.py:50" in finding.summary


def test_one_that_hangs_in_destroy_after_all_have_left():
    finding = one(job(*ended(0, 1, 2), lingers(3, DESTROYS, finished=None), frozen=(3,)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.TEARDOWN, (3,))


def test_an_announced_exit_counts_only_where_its_process_was_found_alive():
    exiting = lingers(3, exit_=left(5, None))
    assert quiet(job(*ended(0, 1, 2), exiting)) == (0, 1, 2, 3)
    finding = one(job(*ended(0, 1, 2), exiting, frozen=(3,)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.TEARDOWN, (3,))


def test_nobody_is_looked_at_in_the_first_moments_of_an_exit():
    assert quiet(job(*ended(0, 1, 2), lingers(3), later_ms=1500)) == ()
    assert quiet(job(*ended(0, 1, 2), lingers(3), later_ms=2500)) == (0, 1, 2, 3)


def test_a_rank_that_was_frozen_before_its_end_is_counted_from_its_end():
    recent = START + 55_000 * MS
    assert 3 in quiet(job(*ended(0, 1, 2), lingers(3, finished=recent), frozen=(3,)))


def test_who_raised_and_now_hangs_in_its_exit_is_an_exception():
    hangs = trace(3, STEPS, finished=OVER, marks=(raised("no such file", 2),))
    finding = one(job(*ended(0, 1, 2), hangs, frozen=(3,)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (3,))


def test_whoever_others_wait_for_has_left_too_early_and_not_at_the_end():
    waiting = [trace(rank, [*STEPS, Op(line=20, done=False)]) for rank in (1, 2)]
    finding = one(job(*ended(0, operations=STEPS), *waiting, lingers(3, STEPS), frozen=(1, 2, 3)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXITED_EARLY, (0, 3))


def test_a_main_thread_that_left_its_threads_to_work_has_not_left():
    waiting = [trace(rank, [*STEPS, Op(line=20, done=False)]) for rank in (0, 1, 2)]
    finding = one(job(*waiting, lingers(3, STEPS, finished=START), frozen=(3,)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (3,))


def test_after_the_jobs_end_nobody_lingers():
    evidence = replace(job(*ended(0, 1, 2), lingers(3), frozen=(3,)), ended=True)
    assert diagnose(evidence).lingering == ()
    assert diagnose(evidence).findings == ()


@pytest.mark.parametrize(
    "end",
    [{"exit": left(6, -6)}, {"exit": left(6, -11, announced=False)}, {"exit": left(6, -6, announced=False), "finished": OVER}],
)
def test_a_crash_after_the_work_is_teardown(end):
    finding = one(job(*ended(0, 1, 2), trace(3, DONE, progress=progress(steps=2), **end), ended=True))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.TEARDOWN, (3,))
    assert "Training is not affected" in finding.advice


def test_a_crash_in_the_middle_is_none():
    finding = one(job(*ended(0, 1, 2), trace(3, STEPS, exit=left(6, -6, announced=False)), ended=True))
    assert finding.cause is Cause.KILLED


def test_an_exit_in_the_middle_that_aborts_as_well_is_an_early_exit():
    waiting = [trace(rank, [*STEPS, Op(line=20, done=False)]) for rank in (0, 1, 2)]
    finding = one(job(*waiting, trace(3, STEPS, exit=left(6, -6))))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXITED_EARLY, (3,))


@pytest.mark.parametrize("number", [-15, -9])
def test_whoever_is_cleared_away_while_it_ends_is_not_blamed(number):
    guilty = trace(0, STEPS, marks=(raised("bad label", 2),), exit=left(3, 1))
    cleared = [trace(rank, DONE, exit=left(6, number)) for rank in (1, 2, 3)]
    finding = one(job(guilty, *cleared, ended=True))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (0,))


def test_activity_of_a_rank_that_is_merely_slow_to_end_is_no_finding():
    slow = Activity(3, Motion.UNKNOWN, since=START)
    assert 3 in quiet(replace(job(*ended(0, 1, 2), lingers(3)), activities={3: slow}))


def test_who_is_alone_because_another_left_before_its_broadcast_is_not_at_fault():
    more = [*STEPS, Op("broadcast", line=60, root=3)]
    assert quiet(job(*ended(0, 1, 2, operations=STEPS), lingers(3, more, finished=None), frozen=(3,))) == ()
