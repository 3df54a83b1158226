"""With half of the evidence the verdict gets less certain, or unknown, and never wrong.

Jobs with every kind of fault, long enough that a ring of fifty operations has lost most of them, cut in every way of
:mod:`tests.cuts` and in each two of them together.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, Diagnosis, Evidence, Exit, MarkKind, Status
from tests.cuts import CUTS, LAST, all_cuts, cut, only_the_newest, without

from .jobs import Op, job, left, mark, progress, trace

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from simulated_jobs import SHAPES, played  # the tools are scripts, not a package
from simulator import evidence

TURNS = (12, 30)
SEEDS = range(9)


@cache
def jobs(shape: str) -> list[tuple[int, Evidence, dict[int | None, Cause]]]:
    """Some jobs of a shape: seed, evidence and what was done to which rank."""
    found = ((seed, each[0]) for seed in SEEDS if (each := played(seed, SHAPES[shape], TURNS)) is not None)
    return [(seed, evidence(job, job.end + 1), {truth.rank: truth.cause for truth in job.plan.truths}) for seed, job in found]


def blamed(diagnosis: Diagnosis) -> set[int]:
    return {rank for finding in diagnosis.findings for rank in finding.culprit_ranks}


def proven(diagnosis: Diagnosis) -> set[tuple[int, Cause]]:
    """Who is said to have done what, for certain."""
    sure = [finding for finding in diagnosis.findings if finding.certainty is Certainty.PROVEN]
    return {(rank, finding.cause) for finding in sure for rank in finding.culprit_ranks}


def too_much(whole: Diagnosis, less: Diagnosis, truth: dict[int | None, Cause]) -> Iterator[str]:
    """What is wrong about the verdict from less evidence."""
    if innocents := blamed(less) - set(truth):
        yield f"{innocents} are innocent"
    if not truth and less.findings:
        yield "there is nothing wrong"
    if more := {rank for rank, _ in proven(less)} - {rank for rank, _ in proven(whole)}:
        yield f"{more} are more certain than with all evidence"
    if wrong := {(rank, cause) for rank, cause in proven(less) - proven(whole) if truth.get(rank) is not cause}:
        yield f"{wrong} are not proven"


@pytest.mark.parametrize("shape", SHAPES)
def test_less_evidence_makes_no_verdict_wrong(shape: str) -> None:
    wrong = []
    for seed, whole, truth in jobs(shape):
        first = diagnose(whole)
        for cut_away in all_cuts():
            less = diagnose(cut(whole, cut_away, seed))
            wrong += [(seed, cut_away, words) for words in too_much(first, less, truth)]
    assert wrong == []


@pytest.mark.parametrize("shape", ["raise", "memory", "kill", "exit"])
def test_less_of_what_a_breakdown_left_makes_no_verdict_wrong(shape: str) -> None:
    """The peers have failed for the one that ended, and the launcher has ended the others."""
    wrong = []
    for seed in SEEDS:
        found = played(seed, SHAPES[shape], TURNS)
        assert found is not None
        simulator, _ = found
        simulator.break_down()
        whole, truth = evidence(simulator, simulator.end + 1), {each.rank: each.cause for each in simulator.plan.truths}
        for cut_away in all_cuts():
            less = diagnose(cut(whole, cut_away, seed))
            wrong += [(seed, cut_away, words) for words in too_much(diagnose(whole), less, truth)]
    assert wrong == []


def test_the_cuts_cut() -> None:
    """They take something away, and something of what was known with all evidence is not known any more."""
    lost: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    count = 0
    for shape in SHAPES:
        for seed, whole, truth in jobs(shape):
            before = blamed(diagnose(whole))
            count += 1
            for name in CUTS:
                less = cut(whole, (name,), seed)
                changed[name] += less != whole
                lost[name] += bool(before - blamed(diagnose(less)))
            assert before <= set(truth)
    assert all(3 * changed[name] > count for name in CUTS), changed
    assert lost["no stacks"] == 0, "stacks explain, they accuse nobody"
    assert all(lost[name] for name in ("not sampled", f"only the newest {LAST}", "two journals missing"))


def test_a_healthy_job_stays_healthy_at_every_moment_of_half_of_the_evidence() -> None:
    for seed in range(6):
        found = played(seed, (), TURNS)
        assert found is not None
        simulator, rng = found
        first = min(rank.clock for rank in simulator.ranks)
        for _ in range(4):
            seen = evidence(simulator, rng.randint(min(first, simulator.end) - 10_000_000, simulator.end))
            for cut_away in all_cuts():
                assert diagnose(cut(seen, cut_away, seed)).findings == (), (seed, cut_away)


# --- each kind of claim on the smallest evidence -----------------------------------------------------------------------------

WAITS = Op(line=15, done=False)


def test_an_exit_with_a_status_of_which_the_reason_is_not_known_is_not_proven_to_be_a_mere_exit() -> None:
    gone = trace(2, [Op(line=15)], exit=left(2, code=1))
    (finding,) = diagnose(job(trace(0, [Op(line=15), WAITS]), trace(1, [Op(line=15), WAITS]), gone)).findings
    assert finding.culprit_ranks == (2,)
    assert (finding.cause, finding.certainty) != (Cause.EXITED_EARLY, Certainty.PROVEN)


@pytest.mark.parametrize("end", [left(4, code=1), left(4, code=-15)], ids=["status 1", "told to end"])
def test_a_rank_whose_operation_failed_under_it_is_a_victim_also_without_its_exception(end: Exit) -> None:
    """Seen in real runs of fault_scenarios/killed.py and shape_mismatch.py, with their marks cut away."""
    victims = [trace(rank, [Op(line=15), Op(line=15, done=False, failed=True)], exit=end) for rank in (0, 2)]
    unseen = trace(1, [Op(line=15)])
    assert blamed(diagnose(job(victims[0], unseen, victims[1], ended=True))) <= {1}
    assert blamed(diagnose(without(job(victims[0], unseen, victims[1], ended=True), [1]))) <= {1}


def test_a_rank_is_a_victim_also_where_it_had_called_more_behind_what_failed_under_it() -> None:
    """Buckets of one backward: the first fails, the next are still open when the rank raises and exits."""
    failed, still_open = Op(line=15, is_async=True, done=False, failed=True), Op(line=15, is_async=True, done=False)
    victims = [trace(rank, [Op(line=15), failed, still_open], exit=left(4, code=1)) for rank in (0, 2)]
    assert blamed(diagnose(without(job(victims[0], trace(1, [Op(line=15)]), victims[1], ended=True), [1]))) <= {1}


def test_a_bucket_that_never_came_is_not_proven_to_have_been_skipped_where_nothing_tells_of_the_backward() -> None:
    bucket = Op(line=15, bucket="DDP bucket 1: head.weight", is_async=True)
    after = Op("barrier", line=30)
    full = [bucket, after]
    others = [trace(rank, [*full, Op(**{**vars(bucket), "done": False})]) for rank in (0, 1)]
    unused = trace(2, [*full, Op("barrier", line=30, done=False)])
    (finding,) = diagnose(job(*others, unused)).findings
    assert finding.culprit_ranks == (2,)
    assert finding.certainty is not Certainty.PROVEN or finding.cause is Cause.UNUSED_PARAMETERS


def test_a_rank_behind_the_inner_of_two_loops_has_left_it() -> None:
    """As in fault_scenarios/uneven_data.py, where no marks are: batches in epochs, and a barrier after each epoch."""
    others = [trace(rank, [Op(line=15)] * 2 + [WAITS]) for rank in (0, 1, 3)]
    gone = trace(2, [Op(line=15)] * 2 + [Op("barrier", line=30, done=False)])
    (finding,) = diagnose(job(*others[:2], gone, others[2], loops={"train.py": ((5, 40), (10, 20))})).findings
    assert finding.culprit_ranks == (2,)
    assert (finding.cause, finding.certainty) != (Cause.RANK_ONLY_COLLECTIVE, Certainty.PROVEN)


def test_a_rank_behind_its_loop_is_not_proven_to_make_a_call_of_its_own_where_the_beginning_is_lost() -> None:
    others = [trace(rank, [Op(line=15)] * 79 + [WAITS]) for rank in (0, 1, 3)]
    gone = trace(2, [Op(line=15)] * 77 + [Op("broadcast", line=30, group="tp")] + [Op("barrier", line=31, done=False)])
    seen = job(*others[:2], gone, others[2], loops={"train.py": ((10, 20),)})
    whole, newest = (diagnose(each).findings[0] for each in (seen, only_the_newest(seen, None, keep=5)))
    assert (whole.cause, whole.culprit_ranks) == (Cause.LEFT_LOOP_EARLY, (2,))
    assert newest.culprit_ranks in ((2,), ())
    assert (newest.cause, newest.certainty) != (Cause.RANK_ONLY_COLLECTIVE, Certainty.PROVEN)


def test_ranks_that_wait_for_ranks_that_nobody_saw_are_not_healthy() -> None:
    ranks = [trace(rank, [Op(), WAITS]) for rank in range(4)]
    seen = without(job(*ranks[:2], trace(2, [Op()]), trace(3, [Op()])), [2, 3])
    diagnosis = diagnose(seen)
    assert blamed(diagnosis) == set()
    assert diagnosis.status is Status.UNKNOWN


def test_ranks_are_not_all_in_an_operation_while_one_of_them_is_not_known_to_be() -> None:
    """Found in a simulated job without a fault, looked at while one rank took a rest."""
    came = [trace(rank, [Op(), WAITS]) for rank in (0, 1, 3)]
    rests = trace(2, [], dropped=1)
    assert diagnose(job(*came[:2], rests, came[2])).findings == ()


def test_a_call_to_which_the_others_have_not_come_yet_is_not_proven_to_be_one_ranks_own() -> None:
    """The rank has left out the last of eight calls of one line: in the first turn nobody has been behind the loop yet."""
    others = [trace(rank, [Op(line=12)] * 7 + [Op(line=12, done=False)]) for rank in (0, 1, 3)]
    skips = trace(2, [Op(line=12)] * 7 + [Op(line=30, elements=1, done=False)])
    (finding,) = diagnose(job(*others[:2], skips, others[2])).findings
    assert finding.culprit_ranks == (2,)
    assert finding.certainty is not Certainty.PROVEN or finding.cause is Cause.SKIPPED_COLLECTIVE


def test_data_that_ended_is_told_from_a_loop_that_was_left_by_marks_alone() -> None:
    """What the tests above take away, here as it should be: with its marks, the same evidence is proven."""
    fetched = tuple(mark(MarkKind.FETCH, number, value=number + 1) for number in range(3))
    going = {"marks": fetched, "progress": progress(batches=3, backwards=3)}
    others = [trace(rank, [Op(line=15)] * 2 + [WAITS], **going) for rank in (0, 1, 3)]
    ended = (*fetched[:2], mark(MarkKind.EXHAUSTED, 2, value=2))
    counts = progress(batches=2, backwards=2, passes=(2,))
    short = trace(2, [Op(line=15)] * 2 + [Op("barrier", line=30, done=False)], marks=ended, progress=counts)
    (finding,) = diagnose(job(*others[:2], short, others[2], loops={"train.py": ((10, 20),)})).findings
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.UNEVEN_INPUTS, (2,), Certainty.PROVEN)
