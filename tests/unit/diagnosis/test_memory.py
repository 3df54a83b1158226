from __future__ import annotations

from dataclasses import replace

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, Mark, MarkKind, Status

from .jobs import Op, job, left, mark, progress, raised, trace

BUCKET = Op(line=20, bucket="DDP bucket 0: fc.weight", is_async=True)
BARRIER = Op("barrier", line=30, done=False)
LAST = replace(BUCKET, done=False)


def ran_out(after: int) -> Mark:
    """Memory ran out under a forward after so many operations, and the rank went on."""
    found = raised("CUDA out of memory", after, kind="torch.OutOfMemoryError", uncaught=False, oom=True)
    assert found.failure is not None
    return replace(found, failure=replace(found.failure, passed=True))


def worked(count: int) -> list[Mark]:
    return [mark(MarkKind.BACKWARD, number) for number in range(count)]


def waits(rank: int, *more: Mark, world: int = 4):
    marks = (*worked(4), *more)
    return trace(rank, [BUCKET, BUCKET, BUCKET, LAST], world=world, marks=marks, progress=progress(forwards=4, backwards=4))


def skipped(rank: int, *more: Mark, world: int = 4):
    marks = (*worked(3), *more)
    operations = [BUCKET, BUCKET, BUCKET, BARRIER]
    return trace(rank, operations, world=world, marks=marks, progress=progress(forwards=4, backwards=3))


def first(evidence):
    return diagnose(evidence).findings[0]


def test_who_caught_it_and_skipped_a_backward_ran_out_of_memory():
    """It was in the second step; what is missing shows only at the end."""
    finding = first(job(*(waits(rank) for rank in (0, 1, 2)), skipped(3, ran_out(1))))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.OUT_OF_MEMORY, (3,))
    assert finding.certainty is Certainty.PROVEN
    assert "train.py:99" in finding.summary
    assert "left out 1 backward" in finding.summary


def test_of_two_ranks_it_is_the_one_that_caught_it():
    finding = first(job(waits(0, world=2), skipped(1, ran_out(1), world=2)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.OUT_OF_MEMORY, (1,))


def test_where_all_ran_out_of_memory_alike_something_else_is_wrong():
    ranks = [waits(rank, ran_out(1)) for rank in (0, 1, 2)]
    assert first(job(*ranks, skipped(3, ran_out(1)))).cause is not Cause.OUT_OF_MEMORY


def test_more_missing_than_memory_explains_is_only_likely():
    few = trace(3, [BUCKET, BUCKET, BUCKET, BARRIER], marks=(ran_out(1),), progress=progress(forwards=4, backwards=2))
    assert first(job(*(waits(rank) for rank in (0, 1, 2)), few)).certainty is Certainty.LIKELY


def test_one_that_ran_out_long_ago_and_left_nothing_out_is_not_at_fault_for_that():
    """It tried again with less: as many backwards as the others, and a fault of another kind later."""
    retried = trace(3, [BUCKET, BUCKET, BUCKET, BARRIER], marks=(ran_out(1),), progress=progress(forwards=5, backwards=4))
    assert first(job(*(waits(rank) for rank in (0, 1, 2)), retried)).cause is not Cause.OUT_OF_MEMORY


def test_without_backwards_it_must_have_been_right_before():
    waiting = [trace(rank, [Op(), Op(line=20, done=False)]) for rank in (0, 1, 2)]
    near = trace(3, [Op(), BARRIER], marks=(ran_out(1),))
    assert first(job(*waiting, near)).cause is Cause.OUT_OF_MEMORY
    far = trace(3, [Op(), BARRIER], marks=(ran_out(0),))
    assert first(job(*waiting, far)).cause is not Cause.OUT_OF_MEMORY


def test_a_rank_that_ran_out_of_memory_and_recovered_with_the_others_is_healthy():
    ranks = [trace(rank, [Op()] * 3, exit=left(4), marks=(ran_out(1),) if rank == 3 else ()) for rank in range(4)]
    diagnosis = diagnose(job(*ranks, ended=True))
    assert (diagnosis.findings, diagnosis.status) == ((), Status.HEALTHY)


def test_it_is_no_end_of_the_rank_whatever_status_it_ends_with():
    exited = trace(3, [Op()] * 3, exit=left(4, 3), marks=(ran_out(3),))
    finding = first(job(*(trace(rank, [Op()] * 3, exit=left(4)) for rank in (0, 1, 2)), exited, ended=True))
    assert finding.cause is Cause.EXITED_EARLY
