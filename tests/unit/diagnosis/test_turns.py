from __future__ import annotations

from desync.diagnosis.verdict import diagnose
from desync.model import Cause, MarkKind
from tests.unit.diagnosis.jobs import Op, job, mark, progress, trace

TURNS = 4


def turn(number: int, *, backward: bool = True) -> list:
    """The marks of one turn of a loop in which every backward launches one bucket."""
    marks = [mark(MarkKind.FETCH, number, value=number + 1), mark(MarkKind.FORWARD, number, value="sync")]
    return [*marks, mark(MarkKind.BACKWARD, number)] if backward else marks


def buckets(count: int, *, pending: bool) -> list[Op]:
    return [Op(bucket="bucket 0", done=not pending or number < count - 1) for number in range(count)]


def counts(batches: int, backwards: int):
    return progress(batches=batches, forwards=batches, backwards=backwards)


def test_a_call_before_the_backward_of_the_same_turn_is_no_skipped_backward() -> None:
    whole = [each for number in range(TURNS) for each in turn(number)]
    others = trace(1, buckets(TURNS + 1, pending=True), world=2, marks=(*whole, *turn(TURNS)), progress=counts(5, 5))
    here = [*buckets(TURNS, pending=False), Op("barrier", line=42, done=False)]
    one = trace(0, here, world=2, marks=(*whole, *turn(TURNS, backward=False)), progress=counts(5, 4))
    assert [finding.cause for finding in diagnose(job(one, others)).findings] == [Cause.RANK_ONLY_COLLECTIVE]


def test_a_turn_that_is_over_without_its_backward_is_one() -> None:
    whole = [each for number in range(TURNS) for each in turn(number)]
    others = [
        trace(rank, buckets(TURNS + 1, pending=True), world=3, marks=(*whole, *turn(TURNS)), progress=counts(5, 5))
        for rank in (1, 2)
    ]
    here = [*buckets(TURNS, pending=False), Op("barrier", line=42, done=False)]
    over = (*whole, *turn(TURNS, backward=False), mark(MarkKind.EXHAUSTED, TURNS, value=5))
    one = trace(0, here, world=3, marks=over, progress=progress(batches=5, forwards=5, backwards=4, passes=(5,)))
    (finding,) = diagnose(job(one, *others)).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, (0,))


def test_a_call_after_a_pass_over_the_data_is_made_in_the_loop_around_it() -> None:
    """As in fault_scenarios/rank_only_branch.py: batches in epochs, and a collective after each epoch on one rank."""
    passed = [each for number in range(TURNS) for each in turn(number)] + [mark(MarkKind.EXHAUSTED, TURNS, value=TURNS)]
    others = [
        trace(
            rank,
            buckets(TURNS + 1, pending=True),
            world=3,
            marks=(*passed, *turn(TURNS)),
            progress=progress(batches=TURNS + 1, forwards=TURNS + 1, backwards=TURNS + 1, passes=(TURNS,)),
        )
        for rank in (1, 2)
    ]
    here = [*buckets(TURNS, pending=False), Op("all_gather", line=30, done=False)]
    counted = progress(batches=TURNS, forwards=TURNS, backwards=TURNS, passes=(TURNS,))
    saves = trace(0, here, world=3, marks=tuple(passed), progress=counted)
    (finding,) = diagnose(job(saves, *others, loops={"train.py": ((5, 40), (8, 20))})).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.RANK_ONLY_COLLECTIVE, (0,))


def test_without_marks_of_data_a_call_behind_the_inner_loop_is_made_in_the_outer_one() -> None:
    """As in fault_scenarios/evaluation_on_one_rank.py: steps in epochs, without a loader."""
    steps = [mark(MarkKind.BACKWARD, number) for number in range(TURNS)]
    counted = progress(backwards=TURNS + 1)
    others = [
        trace(rank, buckets(TURNS + 1, pending=True), world=3, marks=(*steps, mark(MarkKind.BACKWARD, TURNS)), progress=counted)
        for rank in (1, 2)
    ]
    here = [*buckets(TURNS, pending=False), Op("broadcast", line=30, done=False)]
    evaluates = trace(0, here, world=3, marks=tuple(steps), progress=progress(backwards=TURNS))
    (finding,) = diagnose(job(evaluates, *others, loops={"train.py": ((5, 40), (8, 20))})).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.RANK_ONLY_COLLECTIVE, (0,))


def accumulating(rank: int, synced: tuple[int, ...], then: list[Op]):
    """Five forwards of which these synchronise."""
    marks, made = [], []
    for number in range(1, 6):
        sync = number in synced
        marks += [
            mark(MarkKind.FORWARD, len(made), value="sync" if sync else "no_sync"),
            mark(MarkKind.BACKWARD, len(made), left=number < 5 or not sync),
        ]
        made += [Op(bucket="bucket 0")] if sync and number < 5 else []
    return trace(rank, [*made, *then], world=3, marks=tuple(marks), progress=progress(forwards=5, backwards=5))


def test_a_forward_that_only_one_rank_synchronised() -> None:
    mean = Op(line=42, elements=1, done=False)
    others = [accumulating(rank, (2, 4), [mean]) for rank in (0, 2)]
    odd = accumulating(1, (1, 3, 5), [Op(bucket="bucket 0", done=False)])
    (finding,) = diagnose(job(others[0], odd, others[1])).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.RANK_ONLY_COLLECTIVE, (1,))
    assert "forward 5, which the others ran under no_sync()" in finding.summary
    assert "synchronise the same backwards" in finding.advice


def test_a_forward_that_all_synchronised_is_none() -> None:
    mean = Op(line=42, elements=1, done=False)
    others = [accumulating(rank, (1, 3, 5), [mean]) for rank in (0, 2)]
    odd = accumulating(1, (1, 3, 5), [Op(bucket="bucket 0", done=False)])
    (finding,) = diagnose(job(others[0], odd, others[1])).findings
    assert "no_sync" not in finding.summary
