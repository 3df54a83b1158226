"""Each cause on the smallest evidence that shows it, and the neighbour that must not be called so."""

from dataclasses import replace

import pytest

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, Mark, MarkKind, OperationState, RankState, Status

from .jobs import HANG_AFTER, MS, Op, job, left, mark, progress, raised, trace

WAITING = Op(done=False, line=20)


def first(evidence):
    """The first finding."""
    return diagnose(evidence).findings[0]


def test_a_healthy_job_gets_no_finding():
    diagnosis = diagnose(job(*(trace(rank, [Op()] * 3, exit=left(4)) for rank in range(4)), ended=True))
    assert diagnosis.findings == ()
    assert diagnosis.status is Status.HEALTHY
    assert set(diagnosis.states.values()) == {RankState.EXITED}


def test_nothing_is_known_of_a_job_without_traces():
    assert diagnose(job()).status is Status.UNKNOWN


def test_a_rank_that_is_merely_not_there_yet_is_awaited_and_not_blamed():
    evidence = job(*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), trace(3, [Op()]), later_ms=500)
    diagnosis = diagnose(evidence)
    assert diagnosis.findings == ()
    assert diagnosis.awaiting == {3: (0, 1, 2)}


def test_a_frozen_rank_is_stalled_after_the_time_that_the_user_grants():
    ranks = [*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), trace(3, [Op()])]
    assert diagnose(job(*ranks, frozen=(3,), later_ms=HANG_AFTER // MS - 1)).findings == ()
    finding = first(job(*ranks, frozen=(3,), later_ms=HANG_AFTER // MS))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.STALLED_RANK, (3,), Certainty.LIKELY)
    assert finding.status is Status.HANG
    assert finding.divergence.by_rank[3].state is OperationState.ABSENT
    assert finding.divergence.by_rank[0].state is OperationState.WAITING


def test_most_that_stand_still_are_not_blamed_for_a_call_that_they_never_make():
    """One rank is in a call of a line where the others never were: as likely as their all being stuck is a call too many."""
    ranks = [trace(rank, [Op()]) for rank in (1, 2, 3)]
    finding = first(job(trace(0, [Op(), WAITING]), *ranks, frozen=(1, 2, 3)))
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (Cause.STALLED_RANK, Certainty.POSSIBLE, ())
    assert "were never seen at train.py:20" in finding.evidence[-1]
    again = [trace(rank, [replace(WAITING, done=True)]) for rank in (1, 2, 3)]
    known = first(job(trace(0, [replace(WAITING, done=True), WAITING]), *again, frozen=(1, 2, 3)))
    assert known.culprit_ranks == (1, 2, 3)


@pytest.mark.parametrize(
    ("wakes", "waits_for", "found"),
    [(0, "sleeps", True), (2, "sleeps", True), (20, "sleeps", False), (20, "waits for a lock or another thread", True)],
)
def test_who_sleeps_and_looks_again_gets_more_time(wakes: int, waits_for: str, found: bool):
    ranks = [*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), trace(3, [Op()])]

    def seen(later_ms: int):
        evidence = job(*ranks, frozen=(3,), later_ms=later_ms)
        naps = replace(evidence.activities[3], wakes=wakes, waits_for=waits_for)
        return diagnose(replace(evidence, activities={3: naps})).findings

    assert bool(seen(HANG_AFTER // MS)) is found
    (finding,) = seen(6 * HANG_AFTER // MS)
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (3,))


def test_most_that_wait_for_input_may_wait_for_the_one_that_waits_for_them():
    call = replace(WAITING, done=True)
    ranks = [trace(0, [call, WAITING]), *(trace(rank, [call]) for rank in (1, 2, 3))]
    evidence = job(*ranks, frozen=(1, 2, 3))
    activities = {rank: replace(each, waits_for="waits for input") for rank, each in evidence.activities.items()}
    finding = first(replace(evidence, activities=activities))
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (Cause.STALLED_RANK, Certainty.POSSIBLE, ())
    assert "may be for rank 0 to give" in finding.evidence[-1]
    other = {**activities, 1: replace(activities[1], waits_for="waits for a lock on a file")}
    assert first(replace(evidence, activities=other)).culprit_ranks == (1, 2, 3)


def test_groups_of_the_same_members_are_told_apart_by_their_lines():
    """Ranks 0 and 2 make a group more; what shows it is the next group, of which half the ranks have other members."""

    def made(line: int, members: int) -> Op:
        return Op("new_group", line=line, root=members)

    extra = [made(16, 2), made(18, 2), made(18, 1)]
    ranks = [trace(rank, extra if rank in (0, 2) else extra[1:]) for rank in range(4)]
    (finding,) = diagnose(job(*ranks)).findings
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (Cause.GROUP_CREATION, Certainty.POSSIBLE, ())
    assert finding.divergence.seq == 1
    assert "at train.py:16 in main while ranks 1,3 called" in finding.summary
    ranks = [trace(rank, extra if rank == 2 else extra[1:]) for rank in range(4)]
    (finding,) = diagnose(job(*ranks)).findings
    assert (finding.culprit_ranks, finding.divergence.seq) == ((2,), 1)


def test_a_rank_that_still_moves_is_slow():
    ranks = [*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), trace(3, [Op()])]
    finding = first(job(*ranks, moving=(3,)))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.SLOW, Cause.SLOW_RANK, (3,))


def test_the_loader_in_which_a_stalled_rank_waits_is_named():
    waits = mark(MarkKind.FETCH, 1, value=5, left=False)
    ranks = [*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), trace(3, [Op()], marks=(waits,))]
    assert "batch 5 of its data loader" in first(job(*ranks, frozen=(3,))).summary


def _fed(batches, exhausted=False):
    marks = tuple(mark(MarkKind.FETCH, number, value=number + 1) for number in range(batches))
    if exhausted:
        marks = (*marks, mark(MarkKind.EXHAUSTED, batches, value=batches))
    done = progress(batches=batches, backwards=batches, steps=batches, passes=(batches,) if exhausted else ())
    return {"marks": marks, "progress": done}


def test_data_that_ended_early_is_uneven_inputs():
    others = [trace(rank, [Op()] * 2 + [WAITING], **_fed(3)) for rank in (0, 1, 3)]
    short = trace(2, [Op()] * 2 + [Op("barrier", line=30, done=False)], **_fed(2, exhausted=True))
    finding = first(job(*others[:2], short, others[2]))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.UNEVEN_INPUTS, (2,), Certainty.PROVEN)
    assert finding.divergence.by_rank[2].state is OperationState.MISMATCHED
    assert finding.divergence.seq == 3


def test_a_loop_that_was_left_with_data_to_spare():
    others = [trace(rank, [Op()] * 2 + [Op(done=False)], **_fed(3)) for rank in (0, 1, 3)]
    gone = trace(2, [Op()] * 2 + [Op("barrier", line=30, done=False)], **_fed(2))
    finding = first(job(*others[:2], gone, others[2], loops={"train.py": ((5, 15),)}))
    assert (finding.cause, finding.culprit_ranks) == (Cause.LEFT_LOOP_EARLY, (2,))


def test_a_call_more_inside_the_loop_is_no_leaving():
    others = [trace(rank, [Op()] * 2 + [Op(done=False)], **_fed(3)) for rank in (0, 1, 3)]
    more = trace(2, [Op()] * 2 + [Op("all_gather", line=12, done=False)], **_fed(2))
    finding = first(job(*others[:2], more, others[2], loops={"train.py": ((5, 15),)}))
    assert (finding.cause, finding.culprit_ranks) == (Cause.RANK_ONLY_COLLECTIVE, (2,))
    assert "train.py:12" in finding.summary


def test_a_call_that_was_left_out():
    turn = [Op(line=10), Op("broadcast", line=11, root=0)]
    others = [trace(rank, [*turn, Op(line=10, done=False)]) for rank in (0, 1, 3)]
    skips = trace(2, [*turn, Op("broadcast", line=11, root=0, done=False)])
    finding = first(job(*others[:2], skips, others[2]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, (2,))


def test_a_call_too_many_is_found_where_it_was_made_and_not_where_it_shows():
    """The rank's extra all_reduce is paired with the others' next one, as gloo pairs what fits; it shows two calls later."""
    turn = [Op(line=10, elements=1), Op(line=11, elements=1), Op("barrier", line=12)]
    again = [Op(line=10, elements=1), Op(line=11, elements=1), Op("barrier", line=12, done=False)]
    others = [trace(rank, [*turn, *again]) for rank in (0, 1, 3)]
    extra = [*turn, Op(line=10, elements=1), Op(line=99, elements=1), Op(line=11, elements=1, done=False)]
    finding = first(job(*others[:2], trace(2, extra), others[2]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.RANK_ONLY_COLLECTIVE, (2,))
    assert finding.divergence.seq == 5
    assert "train.py:99" in finding.summary


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Op(elements=5, done=False), "shape [5] (others: [4])"),
        (Op(dtype="int32", done=False), "dtype int32 (others: float32)"),
        (Op(reduce_op="max", done=False), "reduce op max (others: sum)"),
    ],
)
def test_other_arguments_of_the_same_call(other, words):
    finding = first(job(*(trace(rank, [Op(done=False)]) for rank in (0, 1, 2)), trace(3, [other])))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.ARGUMENT_MISMATCH, (3,), Certainty.PROVEN)
    assert words in finding.summary


def test_a_mismatch_that_nobody_notices_is_a_finding_all_the_same():
    ranks = [trace(rank, [Op(), Op()], exit=left(3)) for rank in (0, 1, 2)]
    finding = first(job(*ranks, trace(3, [Op(dtype="int32"), Op()], exit=left(3)), ended=True))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.MISMATCH, Cause.ARGUMENT_MISMATCH, (3,))


def test_different_sizes_of_all_to_all_and_all_gather_are_no_mismatch():
    for op in ("all_to_all_single", "all_gather", "gather", "scatter"):
        ranks = [trace(rank, [Op(op, elements=rank + 1)], exit=left(2)) for rank in range(3)]
        assert diagnose(job(*ranks, ended=True)).findings == ()


def test_two_ranks_that_disagree_get_both_readings_and_no_culprit():
    one, other = trace(0, [Op(done=False, line=10)], world=2), trace(1, [Op("barrier", done=False, line=11)], world=2)
    finding = first(job(one, other))
    assert finding.culprit_ranks == ()
    assert "train.py:10" in finding.summary
    assert "train.py:11" in finding.summary


def test_of_two_ranks_the_one_that_changed_its_own_habit_is_at_fault():
    one = trace(0, [Op(elements=4), Op(elements=4, done=False)], world=2)
    other = trace(1, [Op(elements=4), Op(elements=3, done=False)], world=2)
    finding = first(job(one, other))
    assert (finding.cause, finding.culprit_ranks) == (Cause.ARGUMENT_MISMATCH, (1,))


def test_a_turn_that_came_after_a_call_is_no_way_gone_without_it():
    """0 broadcasts, is not held by that, and goes on to its second turn; 1 left the broadcast out in the first one."""
    one = trace(0, [Op(), Op("broadcast", line=30, root=0), Op(done=False)], world=2)
    other = trace(1, [Op(), Op(done=False)], world=2)
    assert first(job(one, other)).culprit_ranks != (0,)


def test_an_exception_is_the_fault_and_the_errors_of_its_peers_are_not():
    lost = raised("Connection closed by peer [127.0.0.1]", 2, kind="RuntimeError")
    victims = [trace(rank, [Op(), Op(failed=True)], marks=(lost,), exit=left(3, 1)) for rank in (0, 2)]
    guilty = trace(1, [Op()], marks=(raised("bad label", 1),), exit=left(2, 1))
    diagnosis = diagnose(job(victims[0], guilty, victims[1], ended=True))
    assert [finding.cause for finding in diagnosis.findings] == [Cause.EXCEPTION]
    assert diagnosis.findings[0].culprit_ranks == (1,)
    assert diagnosis.findings[0].status is Status.CRASH
    assert "ValueError: bad label" in diagnosis.findings[0].summary


def test_memory_that_ran_out_has_its_own_name():
    guilty = trace(1, [Op()], marks=(raised("can't allocate memory", 1, kind="RuntimeError", oom=True),), exit=left(2, 1))
    assert first(job(trace(0, [Op(), WAITING]), guilty)).cause is Cause.OUT_OF_MEMORY


def test_a_rank_that_vanished_was_killed():
    guilty = trace(1, [Op()], exit=left(2, -9, announced=False))
    finding = first(job(trace(0, [Op(), WAITING]), guilty, trace(2, [Op(), WAITING])))
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.KILLED, (1,), Status.CRASH)
    assert "SIGKILL" in finding.summary


def test_ranks_that_the_launcher_ended_afterwards_are_not_findings():
    guilty = trace(1, [Op()], marks=(raised("bad", 1),), exit=left(2, 1))
    ended = [trace(rank, [Op(), WAITING], exit=left(9, -15, announced=False)) for rank in (0, 2)]
    diagnosis = diagnose(job(ended[0], guilty, ended[1], ended=True))
    assert [finding.culprit_ranks for finding in diagnosis.findings] == [(1,)]


def test_a_rank_that_exited_while_the_others_went_on():
    finding = first(job(trace(0, [Op(), WAITING]), trace(1, [Op()], exit=left(2)), trace(2, [Op(), WAITING])))
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.EXITED_EARLY, (1,), Status.CRASH)


def test_a_rank_that_raised_and_sits_in_a_finally_block_is_at_fault_though_it_waits():
    held = trace(2, [Op(), Op("barrier", line=30, done=False)], marks=(raised("no such file", 1, uncaught=False),))
    finding = first(job(*(trace(rank, [Op(), WAITING]) for rank in (0, 1)), held))
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.EXCEPTION, (2,), Status.HANG)


def test_a_backward_that_ended_without_a_bucket():
    bucket = Op(line=20, bucket="DDP bucket 0: head.weight", is_async=True, done=False)
    forward, backward = mark(MarkKind.FORWARD, 1, value="sync"), mark(MarkKind.BACKWARD, 1)
    others = [
        trace(rank, [Op(), bucket], marks=(forward, replace(backward, left=None)), progress=progress(forwards=1, backwards=1))
        for rank in (0, 1)
    ]
    counts = progress(forwards=1, backwards=1)
    unused = trace(2, [Op(), Op("barrier", line=30, done=False)], marks=(forward, backward), progress=counts)
    finding = first(job(*others, unused))
    assert (finding.cause, finding.culprit_ranks) == (Cause.UNUSED_PARAMETERS, (2,))
    assert "head.weight" in finding.summary


def test_a_chain_of_waiting_leads_to_its_root():
    """0 waits in a pair for 1, which waits in another pair for 2, which sits somewhere: 2 is at fault and 1 is not."""
    groups = {"front": (0, 1), "back": (1, 2)}
    zero = trace(0, [Op(group="front", done=False)], world=3, groups=groups)
    one = trace(1, [Op(group="back", done=False, line=40)], world=3, groups=groups)
    two = trace(2, [], world=3, groups=groups)
    diagnosis = diagnose(job(zero, one, two, frozen=(2,)))
    (finding,) = diagnosis.findings
    assert finding.culprit_ranks == (2,)
    assert finding.divergence.group.name == "back"
    assert finding.evidence[-1] == (
        "rank 0 waits in all_reduce #1 (float32[4]) of group front at train.py:10 in main for rank 1, which waits itself"
    )


def test_two_groups_in_opposite_order_are_a_circle():
    groups = {"default_pg": (0, 1), "left": (0, 1), "right": (0, 1)}
    zero = trace(0, [Op(group="left", line=10, done=False)], world=2, groups=groups)
    one = trace(1, [Op(group="right", line=11, done=False)], world=2, groups=groups)
    finding = first(job(zero, one, frozen=(0, 1)))
    assert finding.cause is Cause.GROUP_ORDER_CYCLE
    assert finding.certainty is Certainty.PROVEN
    assert any("train.py:10" in line for line in finding.evidence)
    assert any("train.py:11" in line for line in finding.evidence)


def test_of_groups_of_the_same_ranks_the_one_that_most_are_in_is_right():
    groups = dict.fromkeys(("default_pg", "left", "right"), (0, 1, 2, 3))
    in_left = [trace(rank, [Op(group="left", line=10, done=False)], groups=groups) for rank in (0, 1, 2)]
    one = trace(3, [Op(group="right", line=11, done=False)], groups=groups)
    finding = first(job(*in_left, one, frozen=range(4)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.GROUP_ORDER_CYCLE, (3,))
    two = trace(2, [Op(group="right", line=11, done=False)], groups=groups)
    assert first(job(*in_left[:2], two, one, frozen=range(4))).culprit_ranks == ()


def test_the_end_of_a_loop_is_no_way_of_its_own():
    """0 leaves the pair's sum out of the last turn; 3, which is no member of it, only comes to the end of its loop."""
    groups = {"default_pg": (0, 1, 2, 3), "pair": (0, 1), "odd": (1, 3)}
    start, odd, pair = Op("barrier", line=10), Op("all_gather", line=20, group="odd"), Op(line=30, group="pair")
    end = Op(line=40, done=False)
    turns = {0: [start, pair], 1: [start, odd, pair], 2: [start], 3: [start, odd]}
    last = {0: [start, end], 1: [start, odd, replace(pair, done=False)], 2: [start, end], 3: [start, odd, end]}
    ranks = [trace(rank, [*turns[rank] * 2, *last[rank]], groups=groups) for rank in range(4)]
    assert first(job(*ranks, frozen=range(4))).culprit_ranks in ((), (0,))


def test_two_receives_without_a_send_are_a_circle_of_p2p():
    zero = trace(0, [Op("recv", line=10, peer=1, done=False)], world=2)
    one = trace(1, [Op("recv", line=10, peer=0, done=False)], world=2)
    assert first(job(zero, one, frozen=(0, 1))).cause is Cause.P2P_MISMATCH


def test_an_operation_that_all_are_in_and_nobody_leaves_blames_no_rank():
    ranks = [trace(rank, [Op(), WAITING], world=3) for rank in range(3)]
    finding = first(job(*ranks))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.COMMUNICATION_STALLED, (), Certainty.POSSIBLE)


def test_two_faults_are_two_findings_in_the_order_of_time():
    early = trace(1, [Op()], exit=left(2, -9, announced=False))
    late = trace(3, [Op()], marks=(raised("late", 5),), exit=left(6, 1))
    diagnosis = diagnose(job(trace(0, [Op(), WAITING]), early, trace(2, [Op(), WAITING]), late))
    assert [(finding.cause, finding.culprit_ranks) for finding in diagnosis.findings] == [
        (Cause.KILLED, (1,)),
        (Cause.EXCEPTION, (3,)),
    ]


def test_what_the_recorder_could_not_see_is_in_the_notes():
    evidence = replace(job(trace(0, [Op()], notes=("no room",))), notes=("nothing of rank 1",))
    assert diagnose(evidence).notes == ("nothing of rank 1", "rank 0: no room")


def test_where_completions_cannot_be_seen_an_operation_without_all_ranks_is_not_over():
    blind = Op(seen=False, done=False)
    ranks = [*(trace(rank, [blind, replace(blind, line=20)]) for rank in (0, 1, 2)), trace(3, [blind])]
    assert first(job(*ranks, frozen=(3,))).culprit_ranks == (3,)


def test_where_completions_cannot_be_seen_an_operation_of_all_ranks_may_be_over():
    blind = Op(seen=False, done=False)
    assert diagnose(job(*(trace(rank, [blind, blind]) for rank in range(4)))).findings == ()


def test_ranks_whose_calls_all_come_from_other_lines_part_only_where_they_disagree():
    """``if rank == 0: … else: …`` around everything: the lines prove nothing, the first two calls were sound."""
    zero = trace(0, [Op(line=10), Op(line=11), Op(line=12, done=False)], world=2)
    one = trace(1, [Op(line=20), Op(line=21), Op("barrier", line=22, done=False)], world=2)
    finding = first(job(zero, one))
    assert finding.divergence.seq == 3
    assert finding.culprit_ranks == ()


def test_a_mismatch_that_stopped_nobody_does_not_hide_a_later_crash():
    """Rank 2 summed another dtype and nobody noticed; what rank 2 raises three calls later is a fault of its own."""
    others = [trace(rank, [Op(), Op(), Op(), WAITING]) for rank in (0, 1)]
    both = trace(2, [Op(dtype="int32"), Op(), Op()], marks=(raised("bad label", 3),), exit=left(4, 1))
    findings = diagnose(job(*others, both, trace(3, [Op(), Op(), Op(), WAITING]))).findings
    assert {(finding.cause, finding.culprit_ranks) for finding in findings} == {
        (Cause.ARGUMENT_MISMATCH, (2,)),
        (Cause.EXCEPTION, (2,)),
    }


def test_two_ranks_with_a_silent_mismatch_and_a_crash_of_another_rank():
    guilty = trace(3, [Op(), Op()], marks=(raised("bad label", 2),), exit=left(3, 1))
    ranks = [trace(0, [Op(), Op(), WAITING]), trace(1, [Op(), Op(), WAITING]), trace(2, [Op(dtype="int32"), Op(), WAITING])]
    findings = diagnose(job(*ranks, guilty)).findings
    assert [finding.culprit_ranks for finding in findings] == [(2,), (3,)]


def test_a_mismatch_that_stopped_nobody_does_not_hide_a_later_hang():
    others = [trace(rank, [Op(), Op(), Op(), WAITING]) for rank in (0, 3)]
    odd = trace(1, [Op(dtype="int32"), Op(), Op(), WAITING])
    findings = diagnose(job(others[0], odd, trace(2, [Op(), Op(), Op()]), others[1], frozen=(2,))).findings
    assert [(finding.cause, finding.culprit_ranks) for finding in findings] == [
        (Cause.ARGUMENT_MISMATCH, (1,)),
        (Cause.STALLED_RANK, (2,)),
    ]


def test_a_mismatch_that_stopped_nobody_does_not_hide_a_later_one():
    others = [trace(rank, [Op(), Op(), WAITING]) for rank in (0, 3)]
    odd = trace(1, [Op(dtype="int32"), Op(), WAITING])
    other = trace(2, [Op(), Op(), Op("barrier", line=30, done=False)])
    findings = diagnose(job(others[0], odd, other, others[1])).findings
    assert [(finding.status, finding.culprit_ranks) for finding in findings] == [(Status.MISMATCH, (1,)), (Status.HANG, (2,))]


def test_an_operation_that_all_are_in_does_not_finish_after_a_mismatch_that_stopped_nobody():
    ranks = [*(trace(rank, [Op(), Op(), WAITING]) for rank in (0, 1, 2)), trace(3, [Op(dtype="int32"), Op(), WAITING])]
    causes = [finding.cause for finding in diagnose(job(*ranks)).findings]
    assert causes == [Cause.ARGUMENT_MISMATCH, Cause.COMMUNICATION_STALLED]


def test_ranks_whom_ddp_refuses_are_not_blamed_for_saying_so():
    said = raised("DDP expects same model across all ranks, but Rank 0 has 4 params", 1, kind="RuntimeError")
    finding = first(job(*(trace(rank, [Op()], marks=(said,), exit=left(2, 1)) for rank in range(4)), ended=True))
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.STRUCTURE_MISMATCH, (), Status.CRASH)


def in_a_thread(found: Mark, number: int) -> Mark:
    return replace(found, failure=replace(found.failure, thread="writer"), thread=number)


def test_a_thread_that_raised_is_no_fault_of_a_job_that_went_on():
    died = in_a_thread(raised("disk full", 1), 7)
    ranks = [trace(rank, [Op()] * 3, exit=left(4), marks=(died,) if rank == 1 else ()) for rank in range(4)]
    assert diagnose(job(*ranks, ended=True)).findings == ()
    running = [trace(rank, [Op()] * 3, marks=(died,) if rank == 1 else ()) for rank in range(4)]
    assert diagnose(job(*running)).findings == ()


def test_a_rank_that_stands_still_after_a_thread_of_it_raised_is_stalled_and_both_are_said():
    stuck = trace(3, [Op()], marks=(in_a_thread(raised("disk full", 1), 7),))
    finding = first(job(*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), stuck, frozen=(3,)))
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (3,))
    assert "after its thread writer raised ValueError: disk full at train.py:99" in finding.summary


def test_a_thread_that_communicates_takes_its_rank_with_it():
    gone = trace(3, [Op()], marks=(in_a_thread(raised("disk full", 1), 1),))
    finding = first(job(*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), gone))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (3,))


def test_groups_made_differently_are_why_what_is_called_in_them_does_not_finish() -> None:
    def rank(number: int, half: tuple[int, ...], done: bool):
        operations = [Op("new_group", root=half[0]), Op(group="half", line=20, done=done)]
        return trace(number, operations, groups={"default_pg": (0, 1, 2, 3), "half": half})

    halves = {0: (0, 3), 1: (1, 2), 2: (1, 2), 3: (0, 3)}
    traces = [rank(number, half, done=number in (0, 2)) for number, half in halves.items()]
    (finding,) = diagnose(job(*traces)).findings
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.GROUP_CREATION, ())
    assert any("has not finished" in line for line in finding.evidence)
    (finding,) = diagnose(job(*(rank(number, half, done=True) for number, half in halves.items()))).findings
    assert (finding.status, finding.cause) == (Status.MISMATCH, Cause.GROUP_CREATION)


# --- calls that nobody made before: the order of the lines of one function tells


@pytest.mark.parametrize(
    ("own", "cause", "certainty"),
    [
        (50, Cause.SKIPPED_COLLECTIVE, Certainty.LIKELY),  # further down than the others: it has gone past their call
        (30, Cause.RANK_ONLY_COLLECTIVE, Certainty.PROVEN),  # they have gone past its call
    ],
)
def test_in_the_first_turn_the_order_of_the_lines_tells_what_was_left_out(own: int, cause: Cause, certainty: Certainty) -> None:
    begun, marks = Op(line=10), (mark(MarkKind.FETCH, 0),)
    others = [trace(rank, [begun, Op("barrier", line=40, done=False)], marks=marks) for rank in (0, 1, 3)]
    odd = trace(2, [begun, Op("broadcast", line=own, root=0, done=False)], marks=marks)
    (finding,) = diagnose(job(*others, odd)).findings
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (cause, certainty, (2,))


def test_where_the_beginning_is_lost_the_order_of_the_lines_tells_nothing() -> None:
    others = [trace(rank, [Op(line=10), Op("barrier", line=40, done=False)], dropped=3) for rank in (0, 1, 3)]
    odd = trace(2, [Op(line=10), Op("broadcast", line=50, root=0, done=False)], dropped=3)
    (finding,) = diagnose(job(*others, odd)).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.RANK_ONLY_COLLECTIVE, (2,))


@pytest.mark.parametrize(("batches", "cause"), [(3, Cause.SKIPPED_COLLECTIVE), (2, Cause.RANK_ONLY_COLLECTIVE)])
def test_in_the_last_turn_the_marks_tell_whether_a_new_call_stands_for_one_left_out(batches: int, cause: Cause) -> None:
    """With as many batches as the others it is in their turn, and has gone past their call; with one less it was there."""
    others = [trace(rank, [Op()] * 2 + [Op(done=False)], **_fed(3)) for rank in (0, 1, 3)]
    odd = trace(2, [Op()] * 2 + [Op("broadcast", line=12, root=0, done=False)], **_fed(batches))
    (finding,) = diagnose(job(*others, odd, loops={"train.py": ((5, 15),)})).findings
    assert (finding.cause, finding.culprit_ranks) == (cause, (2,))
