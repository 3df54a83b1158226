"""Ranks that look odd and are not, or not for the reason that comes first to mind, each on the smallest evidence."""

from __future__ import annotations

from dataclasses import replace

from desync.diagnosis import diagnose
from desync.diagnosis.history import REACH
from desync.model import CallSite, Cause, Certainty, Evidence, Frame, MarkKind, RankStacks, Stack, Status, Trace

from .jobs import Op, job, left, mark, progress, raised, trace

BUCKET = Op(line=15, bucket="DDP bucket 0: w", is_async=True)
AWAITED = replace(BUCKET, done=False)
BARRIER = Op("barrier", line=77, done=False)


def named(kind: MarkKind, after: int, value: int, data: str):
    return replace(mark(kind, after, value=value), name=data)


def step(after: int, value: str = "sync", over: bool = True):
    return mark(MarkKind.FORWARD, after, value=value), mark(MarkKind.BACKWARD, after, left=over)


# --- data


def epochs(rank: int, *, evaluates: bool, then: Op, steps: int = 3) -> Trace:
    """Two epochs with a barrier after each; a rank may evaluate before it on two batches of its own, without any collective."""
    marks, made = [], []
    for _ in range(2):
        for number in range(1, steps + 1):
            marks += [named(MarkKind.FETCH, len(made), number, "Train"), *step(len(made))]
            made.append(BUCKET)
        marks.append(named(MarkKind.EXHAUSTED, len(made), steps, "Train"))
        if evaluates:
            marks += [named(MarkKind.FETCH, len(made), number, "Valid") for number in (1, 2)]
            marks.append(named(MarkKind.EXHAUSTED, len(made), 2, "Valid"))
        made.append(replace(BARRIER, done=True))
    passes = (steps, 2, steps, 2) if evaluates else (steps, steps)
    counts = progress(batches=sum(passes), forwards=2 * steps, backwards=2 * steps, passes=passes)
    return trace(rank, [*made, then], world=2, marks=tuple(marks), progress=counts)


def test_a_rank_that_evaluates_on_its_own_has_not_run_out_of_data() -> None:
    """Rank 1 makes the epoch's barrier once more; nobody knows that, but rank 0 has all its data."""
    ahead = epochs(0, evaluates=True, then=AWAITED)
    found = diagnose(job(ahead, epochs(1, evaluates=False, then=BARRIER)))
    assert all(finding.cause is not Cause.UNEVEN_INPUTS for finding in found.findings)
    assert all(0 not in finding.culprit_ranks for finding in found.findings)


def test_data_that_ended_is_still_told_where_all_read_the_same() -> None:
    fetched = [[named(MarkKind.FETCH, number, number + 1, "Train"), *step(number)] for number in range(3)]
    marks = [each for turn in fetched for each in turn]
    counts = progress(batches=3, forwards=3, backwards=3)
    goes_on = trace(0, [BUCKET] * 2 + [AWAITED], world=2, marks=tuple(marks), progress=counts)
    over = (*marks[:6], named(MarkKind.EXHAUSTED, 2, 2, "Train"))
    counts = progress(batches=2, forwards=2, backwards=2, passes=(2,))
    (finding,) = diagnose(job(goes_on, trace(1, [BUCKET] * 2 + [BARRIER], world=2, marks=over, progress=counts))).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.UNEVEN_INPUTS, (1,))


# --- forwards and backwards


def test_rings_that_reach_back_to_different_forwards_do_not_differ_in_no_sync() -> None:
    """Every other forward accumulates on all ranks; of rank 1 one forward more is known."""
    turns = [mark for number in range(10) for mark in step(number // 2, "sync" if number % 2 else "no_sync")]
    whole, cut = tuple(turns), tuple(turns[2:])
    others = [
        trace(
            rank,
            [BUCKET] * 5 + [AWAITED],
            world=3,
            marks=(*cut, *step(5, over=False)),
            progress=progress(forwards=11, backwards=11),
        )
        for rank in (0, 2)
    ]
    late = trace(1, [BUCKET] * 5, world=3, marks=whole, progress=progress(forwards=10, backwards=10))
    (finding,) = diagnose(job(others[0], late, others[1], moving=(1,))).findings
    assert (finding.status, finding.cause) == (Status.SLOW, Cause.SLOW_RANK)


def test_a_forward_that_had_no_backward_yet_does_not_stand_for_one_under_no_sync() -> None:
    good = (*step(0), *step(1, over=False))
    odd = (*step(0), *step(1, "no_sync"), mark(MarkKind.FORWARD, 1, value="sync"))
    others = [
        trace(rank, [BUCKET, AWAITED], world=3, marks=good, progress=progress(forwards=2, backwards=2)) for rank in (0, 2)
    ]
    counts = progress(forwards=3, backwards=2)
    skips = trace(1, [BUCKET, Op(line=40, elements=1, done=False)], world=3, marks=odd, progress=counts)
    (finding,) = diagnose(job(others[0], skips, others[1])).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, (1,))


def test_a_backward_of_the_ranks_own_is_not_that_of_a_ddp_module() -> None:
    """Rank 0 looks at some gradients beside the training, and is late."""
    own = (*step(0), mark(MarkKind.BACKWARD, 1))
    ahead = (*step(0), *step(1, over=False))
    others = [
        trace(rank, [BUCKET, AWAITED], world=3, marks=ahead, progress=progress(forwards=2, backwards=2)) for rank in (1, 2)
    ]
    late = trace(0, [BUCKET], world=3, marks=own, progress=progress(forwards=1, backwards=2))
    (finding,) = diagnose(job(late, *others, moving=(0,))).findings
    assert finding.cause is Cause.SLOW_RANK


def test_a_backward_inside_a_backward_is_not_its_end() -> None:
    """As where activations are computed again: the inner one is over, the outer one is not."""
    forward, outer = step(1, over=False)
    inner = replace(mark(MarkKind.BACKWARD, 1), time=outer.time + 1, left=outer.time + 2)
    counts = progress(forwards=2, backwards=3)
    others = [
        trace(rank, [BUCKET, AWAITED], world=3, marks=(*step(0), forward, outer, inner), progress=counts) for rank in (0, 2)
    ]
    within = trace(1, [BUCKET], world=3, marks=(*step(0), forward, outer, inner), progress=counts)
    (finding,) = diagnose(job(others[0], within, others[1], frozen=(1,))).findings
    assert finding.cause is Cause.STALLED_RANK


def test_memory_that_ran_out_long_ago_does_not_explain_a_late_rank() -> None:
    def steps(count: int, *, failed: bool = False, over: bool = True):
        marks = [each for number in range(count) for each in step(number, over=over or number < count - 1)]
        out = raised("CUDA out of memory", 2, oom=True, uncaught=False)
        passed = replace(out, failure=replace(out.failure, passed=True))
        return tuple([*marks[:4], passed, *marks[4:]] if failed else marks)

    counts = progress(forwards=21, backwards=21)
    others = [trace(rank, [BUCKET] * 20 + [AWAITED], world=3, marks=steps(21, over=False), progress=counts) for rank in (0, 2)]
    counts = progress(forwards=21, backwards=20)
    late = trace(1, [BUCKET] * 20, world=3, marks=steps(20, failed=True), progress=counts)
    (finding,) = diagnose(job(others[0], late, others[1], moving=(1,))).findings
    assert finding.cause is Cause.SLOW_RANK


# --- helpers


def through_a_helper(evidence: Evidence) -> Evidence:
    """The same job, whose calls all come from util.py:5, called from the lines that the operations have."""

    def moved(one: Trace) -> Trace:
        calls = tuple(
            replace(call, site=CallSite((Frame("mean", "util.py", 5), *call.site.frames))) if call.site is not None else call
            for call in one.operations.calls
        )
        return replace(one, operations=replace(one.operations, calls=calls))

    return replace(evidence, traces=tuple(map(moved, evidence.traces)))


def test_another_call_of_one_helper_is_another_call() -> None:
    turn = [Op(line=10), Op(line=20, elements=1)]
    others = [trace(rank, [*turn * 2, Op(line=10), Op(line=20, elements=1, done=False)]) for rank in (0, 1, 3)]
    skips = trace(2, [*turn * 2, Op(line=10), Op(line=10, done=False)])
    (finding,) = diagnose(through_a_helper(job(*others[:2], skips, others[2]))).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, (2,))
    assert (
        "util.py:5 in mean (from train.py:20) and went on to all_reduce at util.py:5 in mean (from train.py:10)"
        in finding.summary
    )


# --- circles

GROUPS = {"default_pg": (0, 1, 2, 3), "tp": (0, 1)}


def test_what_is_rare_is_not_new() -> None:
    """Both members of tp made the call at line 22 long ago; it is due again, and rank 1 leaves it out."""
    turn = [Op(line=10), Op(line=20, group="tp"), Op(line=30)]
    rare = Op(line=22, group="tp")
    past = [*turn * 5, Op(line=10), Op(line=20, group="tp"), rare, Op(line=30), *turn * (REACH // 2)]
    now = [*past, Op(line=10), Op(line=20, group="tp")]
    others = [
        trace(rank, [Op(line=10), Op(line=30)] * (6 + REACH // 2) + [Op(line=10), Op(line=30, done=False)], groups=GROUPS)
        for rank in (2, 3)
    ]
    makes = trace(0, [*now, replace(rare, done=False)], groups=GROUPS)
    leaves_out = trace(1, [*now, Op(line=30, done=False)], groups=GROUPS)
    (finding,) = diagnose(job(makes, leaves_out, *others)).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.GROUP_ORDER_CYCLE, ())


def test_of_two_members_neither_is_to_blame_for_a_call_that_is_new() -> None:
    turn = [Op(line=10), Op(line=20, group="tp"), Op(line=30)]
    others = [
        trace(rank, [Op(line=10), Op(line=30)] * 3 + [Op(line=10), Op(line=30, done=False)], groups=GROUPS) for rank in (2, 3)
    ]
    makes = trace(0, [*turn * 3, *turn[:2], Op(line=22, group="tp", done=False)], groups=GROUPS)
    leaves_out = trace(1, [*turn * 3, *turn[:2], Op(line=30, done=False)], groups=GROUPS)
    (finding,) = diagnose(job(makes, leaves_out, *others)).findings
    assert finding.culprit_ranks == ()


def crossed(one: int, other: int, groups: dict[str, tuple[int, ...]]) -> list[Trace]:
    """Two ranks that use two groups in opposite order."""
    first, second = groups
    calls = (Op(line=10, group=first, done=False), Op(line=20, group=second, done=False))
    return [trace(rank, [call], groups=groups) for rank, call in zip((one, other), calls, strict=True)]


def test_circles_that_have_nothing_to_do_with_each_other_are_all_told() -> None:
    ranks = [*crossed(0, 1, {"a": (0, 1), "b": (0, 1)}), *crossed(2, 3, {"c": (2, 3), "d": (2, 3)})]
    findings = diagnose(job(*ranks)).findings
    assert [finding.cause for finding in findings] == [Cause.GROUP_ORDER_CYCLE] * 2
    assert all(finding.certainty is Certainty.PROVEN for finding in findings)


def test_a_circle_beside_a_rank_that_was_killed_is_told_as_well() -> None:
    groups = {"default_pg": (2, 3)}
    waits, gone = trace(2, [Op(done=False)], groups=groups), trace(3, [], groups=groups, exit=left(1, code=-9, announced=False))
    findings = diagnose(job(*crossed(0, 1, {"a": (0, 1), "b": (0, 1)}), waits, gone)).findings
    assert {finding.cause for finding in findings} == {Cause.KILLED, Cause.GROUP_ORDER_CYCLE}


def test_what_is_said_to_have_come_always_came_always() -> None:
    """In one turn of four a call to log came between; now the rank has left out the other one."""
    turn, logged = [Op(line=10), Op(line=20, group="tp"), Op(line=30)], Op(line=25, group="tp")
    past = [*turn, *turn[:2], logged, turn[2], *turn, *turn[:2], logged, turn[2], Op(line=10)]
    rest = [Op(line=10), Op(line=30)] * 4 + [Op(line=10), Op(line=30, done=False)]
    ranks = [trace(0, [*past, Op(line=20, group="tp", done=False)], groups=GROUPS)]
    ranks += [trace(1, [*past, Op(line=30, done=False)], groups=GROUPS)]
    (finding,) = diagnose(job(*ranks, *(trace(rank, rest, groups=GROUPS) for rank in (2, 3)))).findings
    told = [line for line in finding.evidence if "always" in line]
    assert len(told) == 1
    assert "train.py:20" in told[0]


def test_of_several_ranks_it_is_said_that_they_are() -> None:
    others = [trace(rank, [Op(), Op(done=False)]) for rank in (0, 3)]
    stuck = [trace(rank, [Op()]) for rank in (1, 2)]
    (finding,) = diagnose(job(others[0], *stuck, others[1], frozen=(1, 2))).findings
    assert finding.summary.startswith("Ranks 1-2 are stuck")


# --- turns


def test_turns_are_not_counted_where_the_beginning_of_the_records_is_lost() -> None:
    """Found in a simulated job: rank 1 made one more call of the loop, long ago; rank 0 has come to the end of it."""
    over = trace(0, [Op(line=20)] * 8 + [Op("broadcast", line=30, root=0, done=False)], world=2, dropped=5)
    extra = trace(1, [Op(line=20)] * 10 + [Op(line=20, done=False)], world=2, dropped=3)
    found = diagnose(job(over, extra, loops={"train.py": ((18, 25),)})).findings
    assert all(0 not in finding.culprit_ranks for finding in found)


# --- what to change


def test_a_call_that_a_forward_makes_for_its_buffers_is_not_to_be_moved_out_of_a_branch() -> None:
    """The names of functions in stacks are qualified, as py-spy gives them."""
    others = [trace(rank, [Op(line=10), Op(line=10, done=False)], world=3) for rank in (1, 2)]
    evaluates = trace(0, [Op(line=10), Op("broadcast", line=24, root=0, done=False)], world=3)
    frames = (
        Frame("DistributedDataParallel._sync_buffers", "torch/nn/parallel/distributed.py", 2),
        Frame("evaluate", "train.py", 24),
    )
    stacks = (RankStacks(0, "py-spy", None, (Stack("MainThread", frames),)),)
    for seen, words in ((stacks, "model.module"), ((), "out of the branch")):
        (finding,) = diagnose(job(evaluates, *others, stacks=seen)).findings
        assert finding.culprit_ranks == (0,)
        assert words in finding.advice


# --- ends


def test_who_vanished_after_another_had_failed_was_ended_by_the_launcher() -> None:
    """Seen in a run of fault_scenarios/source_in_group.py, in the moment before the launcher said how its ranks had ended."""
    failed = trace(2, [Op()], world=3, marks=(raised("no such group", 1),), exit=left(1, code=1))
    waits = trace(0, [Op(), Op(done=False)], world=3)
    for vanished_at, culprits in ((2, {2}), (0, {1, 2})):
        gone = trace(1, [Op(), Op(done=False)], world=3, exit=left(vanished_at, code=None, announced=False))
        found = diagnose(job(waits, gone, failed)).findings
        assert {rank for finding in found for rank in finding.culprit_ranks} == culprits
