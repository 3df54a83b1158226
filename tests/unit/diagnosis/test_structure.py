"""Ranks that built different models: blamed by what each says of itself, never for having said it."""

import pytest

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, Status

from .jobs import Op, job, left, raised, trace

COMPARED = Op("all_gather", line=10)


def numbers(own, *, rank, other, theirs):
    """What DDP raises on a rank that finds another number of parameters elsewhere."""
    words = f"Rank {rank} has {own} params, while rank {other} has inconsistent {theirs} params."
    return raised(f"DDP expects same model across all ranks, but {words}", 1, kind="RuntimeError")


def shapes(rank, sizes="[30, 20]"):
    """What DDP raises on a rank of which a parameter differs from rank 0's."""
    words = f"[{rank}]: params[0] in this process with sizes {sizes} appears not to match sizes of the same param in process 0."
    return raised(words, 1, kind="RuntimeError")


def refused(rank, mark, world):
    """A rank that DDP has refused."""
    return trace(rank, [COMPARED], marks=(mark,), exit=left(2, 1), world=world)


def verdict(*traces):
    """The first finding."""
    finding = diagnose(job(*traces, ended=True)).findings[0]
    assert (finding.status, finding.cause) == (Status.CRASH, Cause.STRUCTURE_MISMATCH)
    return finding


def counts(*own):
    """Ranks with so many parameters, all of which have raised."""
    found = []
    for rank, number in enumerate(own):
        other = next((peer for peer, theirs in enumerate(own) if theirs != number), 0)
        found.append(refused(rank, numbers(number, rank=rank, other=other, theirs=own[other]), len(own)))
    return found


@pytest.mark.parametrize(("own", "culprits"), [((4, 6, 4), (1,)), ((6, 4, 4), (0,)), ((4, 6, 8, 4, 4), (1, 2))])
def test_the_ranks_with_another_number_of_parameters_than_most(own, culprits):
    finding = verdict(*counts(*own))
    assert (finding.culprit_ranks, finding.certainty) == (culprits, Certainty.LIKELY)
    assert f"{own[culprits[0]]} parameters, the others 4 parameters" in finding.summary


@pytest.mark.parametrize("own", [(4, 6), (4, 4, 6, 6), (4, 6, 8)])
def test_without_a_majority_nobody_is_blamed(own):
    assert verdict(*counts(*own)).culprit_ranks == ()


def test_the_first_that_raised_is_not_blamed_for_it():
    """Of four ranks two have said what they have; the others may have either."""
    silent = [trace(rank, [COMPARED], exit=left(9, -15, announced=False)) for rank in (2, 3)]
    assert verdict(*counts(4, 6, 4, 4)[:2], *silent).culprit_ranks == ()


def went_on(rank, world):
    """A rank that DDP let pass."""
    return trace(rank, [COMPARED, Op("broadcast", line=10, done=False)], world=world)


def test_a_rank_with_another_shape_than_rank_0_and_the_others():
    finding = verdict(went_on(0, 3), refused(1, shapes(1), 3), went_on(2, 3))
    assert finding.culprit_ranks == (1,)
    assert "params[0] of sizes [30, 20]" in finding.summary


def test_rank_0_with_another_shape_than_all_others():
    finding = verdict(went_on(0, 3), refused(1, shapes(1), 3), refused(2, shapes(2), 3))
    assert finding.culprit_ranks == (0,)


def test_of_two_ranks_with_different_shapes_neither():
    assert verdict(went_on(0, 2), refused(1, shapes(1), 2)).culprit_ranks == ()
