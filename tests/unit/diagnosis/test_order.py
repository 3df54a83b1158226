"""The same calls in another order: with somebody waiting, without anybody noticing, and what only looks like it."""

from dataclasses import replace

import pytest

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, MarkKind, OperationState, Status

from .jobs import Op, job, left, mark, progress, trace

GATHER = Op("all_gather", line=11, is_async=True, done=False)
SUM = Op(line=12, is_async=True, done=False)
LOSS, ACCURACY = Op(line=20), Op(line=21)
TURN = [LOSS, ACCURACY]
OTHER_WAY = [ACCURACY, LOSS]
END = Op("barrier", line=30)


def over(rank, operations, world=4):
    """A rank that has come to its end."""
    return trace(rank, operations, world=world, exit=left(len(operations) + 1))


def only(evidence):
    """The one finding."""
    (finding,) = diagnose(evidence).findings
    return finding


def told(evidence):
    """What the one finding says, shortly."""
    finding = only(evidence)
    return finding.status, finding.cause, finding.certainty, finding.culprit_ranks


# --- somebody waits


def test_two_calls_that_one_rank_made_the_other_way_round():
    before = [replace(GATHER, done=True), replace(SUM, done=True)]
    others = [trace(rank, [*before, GATHER, SUM]) for rank in (0, 1, 3)]
    evidence = job(*others[:2], trace(2, [*before, SUM, GATHER]), others[2])
    assert told(evidence) == (Status.HANG, Cause.ORDER_MISMATCH, Certainty.PROVEN, (2,))
    finding = only(evidence)
    assert finding.divergence.seq == 3
    assert finding.divergence.by_rank[2].state is OperationState.MISMATCHED
    assert [("train.py:12" in line, "train.py:11" in line) for line in finding.evidence] == [(True, True)] * 2
    assert finding.evidence[0].startswith("rank 2: all_reduce #3")


def test_three_calls_of_which_each_is_elsewhere():
    spread = Op("broadcast", line=13, root=0, is_async=True, done=False)
    others = [trace(rank, [GATHER, SUM, spread]) for rank in (0, 1, 3)]
    assert only(job(*others[:2], trace(2, [SUM, spread, GATHER]), others[2])).cause is Cause.ORDER_MISMATCH


def test_a_call_that_comes_only_in_the_next_turn_was_left_out_in_this_one():
    """Rank 2 left the gathering out of its second turn; that of the third is not that of the second."""
    turns = tuple(mark(MarkKind.STEP, after) for after in (2, 4))
    ours, theirs = [GATHER, SUM, GATHER, SUM], [GATHER, SUM, SUM, GATHER]
    others = [trace(rank, ours, marks=turns[:1], progress=progress(steps=1)) for rank in (0, 1, 3)]
    left_out = (mark(MarkKind.STEP, 2), mark(MarkKind.STEP, 3))
    skips = trace(2, theirs, marks=left_out, progress=progress(steps=2))
    finding = only(job(*others[:2], skips, others[2]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, (2,))


def test_two_ranks_get_both_orders_and_no_culprit():
    evidence = job(trace(0, [GATHER, SUM], world=2), trace(1, [SUM, GATHER], world=2))
    assert told(evidence) == (Status.HANG, Cause.ORDER_MISMATCH, Certainty.PROVEN, ())
    assert [line[:6] for line in only(evidence).evidence] == ["rank 0", "rank 1"]


@pytest.mark.parametrize("world", [2, 4])
def test_threads_that_share_a_group_have_no_order_and_no_culprit(world):
    gather, total = replace(GATHER, thread=7), replace(SUM, thread=8)
    ranks = [trace(rank, [gather, total] if rank else [total, gather], world=world) for rank in range(world)]
    evidence = job(*ranks)
    assert told(evidence) == (Status.HANG, Cause.GROUP_ORDER_CYCLE, Certainty.PROVEN, ())
    assert all("thread 7" in line and "thread 8" in line for line in only(evidence).evidence)


def test_one_line_of_a_loop_that_makes_both_calls():
    """``for key in values: collective(key)`` where one rank's dictionary has another order; both are held in their first."""
    swap, total = Op("all_to_all_single", line=15, done=False), Op("all_reduce", line=15, done=False)
    others = [trace(rank, [swap]) for rank in (0, 1, 3)]
    ranks = (*others[:2], trace(2, [total]), others[2])
    assert told(job(*ranks, loops={"train.py": ((14, 15),)}))[1:] == (Cause.ORDER_MISMATCH, Certainty.LIKELY, (2,))
    assert only(job(*ranks)).cause is not Cause.ORDER_MISMATCH  # the line of a trainer's fit() makes all calls


def test_one_line_of_a_loop_whose_calls_differ_in_shape_alone():
    turn = [Op(line=15, elements=3), Op(line=15, elements=5)]
    others = [trace(rank, [*turn, *turn, Op(line=15, elements=3, done=False)]) for rank in (0, 1, 3)]
    early = trace(2, [*turn, *turn, Op(line=15, elements=5, done=False)])
    loops = {"train.py": ((14, 15),)}
    assert only(job(*others[:2], early, others[2], loops=loops)).cause is Cause.ORDER_MISMATCH
    other = trace(2, [*turn, *turn, Op(line=15, elements=4, done=False)])
    assert only(job(*others[:2], other, others[2], loops=loops)).cause is Cause.ARGUMENT_MISMATCH


# --- nobody notices


def silent(odd, usual, *, world=4, who=2):
    """A job that came to its end, in which one rank did something else than the others."""
    return job(*(over(rank, odd if rank == who else usual, world) for rank in range(world)), ended=True)


def test_calls_that_look_alike_are_told_apart_by_their_lines():
    evidence = silent([*TURN, *OTHER_WAY, *TURN, END], [*TURN * 3, END])
    assert told(evidence) == (Status.MISMATCH, Cause.ORDER_MISMATCH, Certainty.LIKELY, (2,))
    finding = only(evidence)
    assert finding.divergence.seq == 3
    assert finding.divergence.by_rank[2].operation.call.site.innermost.line == 21
    assert finding.divergence.by_rank[2].state is OperationState.MISMATCHED
    assert finding.divergence.by_rank[0].state is OperationState.COMPLETED
    assert all("train.py:20" in line and "train.py:21" in line for line in finding.evidence)


def test_an_exchange_in_the_very_end_counts_when_all_is_over():
    operations = [END, *TURN, END, *TURN]
    assert told(silent([END, *TURN, END, *OTHER_WAY], operations))[1:] == (Cause.ORDER_MISMATCH, Certainty.LIKELY, (2,))
    running = [trace(rank, [END, *TURN, END, *(OTHER_WAY if rank == 2 else TURN)]) for rank in range(4)]
    assert diagnose(job(*running)).findings == ()


def test_a_rank_that_always_goes_another_way_may_mean_it():
    evidence = silent([*OTHER_WAY * 3, END], [*TURN * 3, END])
    assert told(evidence) == (Status.MISMATCH, Cause.ORDER_MISMATCH, Certainty.POSSIBLE, ())


def test_of_two_ranks_the_one_that_once_went_the_other_way():
    once = [*TURN, *OTHER_WAY, *TURN, END]
    assert told(silent(once, [*TURN * 3, END], world=2, who=1))[1:] == (Cause.ORDER_MISMATCH, Certainty.LIKELY, (1,))


def test_threads_whose_calls_look_alike():
    loss, accuracy = replace(LOSS, thread=7), replace(ACCURACY, thread=8)
    evidence = silent([loss, accuracy, accuracy, loss, END, END, END], [loss, accuracy, loss, accuracy, END, END, END])
    assert told(evidence) == (Status.MISMATCH, Cause.GROUP_ORDER_CYCLE, Certainty.LIKELY, ())


def test_a_mismatch_that_stopped_nobody_does_not_hide_a_circle():
    groups = {"default_pg": (0, 1), "left": (0, 1), "right": (0, 1)}
    ends = [Op(group="left", line=40, done=False), Op(group="right", line=41, done=False)]
    ways = [[*TURN, *TURN, *TURN, END], [*TURN, *OTHER_WAY, *TURN, END]]
    ranks = [trace(rank, [*ways[rank], ends[rank]], world=2, groups=groups) for rank in (0, 1)]
    causes = [finding.cause for finding in diagnose(job(*ranks, frozen=(0, 1))).findings]
    assert causes == [Cause.ORDER_MISMATCH, Cause.GROUP_ORDER_CYCLE]


@pytest.mark.parametrize(
    ("odd", "usual"),
    [
        ([Op("barrier", line=20), Op("barrier", line=21), END] * 2, [Op("barrier", line=21), Op("barrier", line=20), END] * 2),
        ([Op(line=40), Op(line=41), END] * 2, [LOSS, ACCURACY, END] * 2),
        ([Op("broadcast", line=40, root=2), END, END], [Op("broadcast", line=41, root=2), END, END]),
    ],
    ids=["barriers carry no values", "all calls from other lines", "a root calls from another line"],
)
def test_lines_that_differ_are_no_fault(odd, usual):
    assert diagnose(silent(odd, usual)).findings == ()


def test_taking_turns_is_no_fault():
    """One rank gives what it has while the others add nothing, one after the other; all with one operation."""
    give, listen = Op(line=50), Op(line=51)
    for world in (2, 3, 4):
        ranks = [over(rank, [give if turn == rank else listen for turn in range(world)] * 3, world) for rank in range(world)]
        assert diagnose(job(*ranks, ended=True)).findings == ()


def test_halves_that_go_different_ways_are_left_alone():
    ranks = [over(rank, [*(TURN if rank % 2 else OTHER_WAY) * 3, END]) for rank in range(4)]
    assert diagnose(job(*ranks, ended=True)).findings == ()


def test_a_call_left_out_is_no_exchange():
    """In turns of three equal calls and another one, a call less looks like an exchange in every turn that follows."""
    turn = [LOSS, LOSS, LOSS, ACCURACY]
    others = [trace(rank, [*turn * 4, Op("barrier", line=30, done=False)]) for rank in (0, 1, 3)]
    skips = trace(2, [*turn, *turn[1:], *turn * 2, Op("barrier", line=30, done=False)])
    findings = diagnose(job(*others[:2], skips, others[2])).findings
    assert {finding.cause for finding in findings} == {Cause.SKIPPED_COLLECTIVE}
