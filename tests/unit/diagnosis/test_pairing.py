"""Sends and recvs without their partner: who is blamed, and where nobody is."""

from dataclasses import replace

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, OperationState, Status

from .jobs import HANG_AFTER, MS, Op, job, trace

MEET = Op("barrier", line=40)
WAITS = replace(MEET, done=False)


def send(to, done=True):
    return Op("send", line=20, peer=to, done=done)


def recv(source, done=True):
    return Op("recv", line=21, peer=source, done=done)


def told(evidence):
    """Cause, certainty and culprits of the one finding."""
    (finding,) = diagnose(evidence).findings
    assert finding.status is Status.HANG
    return finding.cause, finding.certainty, finding.culprit_ranks


# --- several partners against one


def pipeline(counts, world):
    """Stages that hand on so many microbatches each, as far as their neighbours let them."""
    ranks = []
    for rank, count in enumerate(counts):
        before, after = counts[:rank], counts[rank + 1 : rank + 2]
        operations = []
        for number in range(1, count + 1):
            came = number <= min([*before, count])
            if rank:
                operations.append(recv(rank - 1, done=came))
            if came and rank + 1 < world:
                operations.append(send(rank + 1, done=number <= min([*before, count, *after])))
            if not operations[-1].done:
                break
        ranks.append(trace(rank, operations if not operations[-1].done else [*operations, WAITS], world=world))
    return job(*ranks, frozen=range(world))


def test_a_stage_with_a_microbatch_less_than_both_neighbours():
    evidence = pipeline([4, 3, 4], 3)
    assert told(evidence) == (Cause.P2P_MISMATCH, Certainty.LIKELY, (1,))
    finding = diagnose(evidence).findings[0]
    assert finding.evidence[:2] == (
        "rank 0 waits in send #4 at train.py:20 in main; rank 1 has made 3 of its recvs from rank 0",
        "rank 2 waits in recv #4 at train.py:21 in main; rank 1 has made 3 of its sends to rank 2",
    )
    assert finding.divergence.by_rank[1].operation.call.op == "barrier"


def test_a_first_stage_for_which_all_others_wait_in_a_chain():
    assert told(pipeline([3, 4, 4, 4], 4))[2] == (0,)


def test_one_partner_against_one_is_nobodys_fault_for_sure():
    assert told(pipeline([4, 3], 2)) == (Cause.P2P_MISMATCH, Certainty.PROVEN, ())
    assert told(pipeline([3, 3, 4], 3))[2] == ()


def test_two_that_wait_are_no_majority_against_three_that_do_not():
    counts = [[send(2, done=False)], [WAITS], [WAITS], [send(2, done=False)], [WAITS], [WAITS]]
    evidence = job(*(trace(rank, operations, world=6) for rank, operations in enumerate(counts)), frozen=range(6))
    assert told(evidence)[2] == ()


# --- one that did not do as before


def ring(rank, left_out=(), world=4, done=True):
    """One turn of a ring: both neighbours, but for those left out."""
    others = [other for other in ((rank - 1) % world, (rank + 1) % world) if other not in left_out]
    return [operation for other in others for operation in (send(other, done), recv(other, done))]


def turns(last, *, before=3, world=4):
    """Some turns in which all exchange with both neighbours, and one in which each rank does what ``last`` says."""
    return job(
        *(trace(rank, [*[*ring(rank, world=world), MEET] * before, *last[rank]], world=world) for rank in range(world)),
        frozen=range(world),
    )


def test_a_rank_that_leaves_out_a_neighbour_for_the_first_time():
    last = {0: ring(0, done=False), 1: [*ring(1), WAITS], 2: [*ring(2), WAITS], 3: [*ring(3, left_out=(0,)), WAITS]}
    evidence = turns(last)
    assert told(evidence) == (Cause.P2P_MISMATCH, Certainty.LIKELY, (3,))
    assert diagnose(evidence).findings[0].evidence[:2] == (
        "rank 3 left out send to rank 0 at train.py:20 in main, which it made in every turn before",
        "rank 3 left out recv from rank 0 at train.py:21 in main, which it made in every turn before",
    )


def test_a_rank_that_sends_once_more_than_ever():
    last = {rank: [*ring(rank), WAITS] for rank in range(1, 4)}
    assert told(turns({0: [*ring(0), send(2, done=False)], **last}))[2] == (0,)


def test_ranks_without_a_past_or_with_one_that_changes_are_not_blamed():
    last = {0: ring(0, done=False), 1: [*ring(1), WAITS], 2: [*ring(2), WAITS], 3: [*ring(3, left_out=(0,)), WAITS]}
    assert told(turns(last, before=1))[2] == ()
    changed = last | {2: [*ring(2, left_out=(3,)), WAITS]}
    assert told(turns(changed))[2] == ()


PAIR = {"default_pg": (0, 1, 2, 3), "pair": (0, 1)}
SUM = Op(line=10)
OWN = Op(line=15, group="pair")


def ring_after_sums(rank, left_out=()):
    """A turn with a sum of all, one of the pair, and a send to the next rank."""
    sums = [SUM, OWN] if rank in PAIR["pair"] and "own" not in left_out else [SUM]
    steps = [send((rank + 1) % 4), recv((rank - 1) % 4)]
    return [*sums, *(steps if rank % 2 == 0 else reversed(steps))]


def held(operations):
    """The same operations, of which the last does not end."""
    return [*operations[:-1], replace(operations[-1], done=False)]


def test_a_rank_that_left_a_collective_out_before_its_send():
    """0 goes to its send without the pair's sum; 1 waits for it there, and so 2 and 3 wait for them: 1 is as it always was."""
    last = {0: [SUM, send(1)], 1: [SUM, OWN], 2: [SUM, send(3), recv(1)], 3: [SUM, recv(2), send(0)]}
    ranks = [trace(rank, [*ring_after_sums(rank) * 3, *held(last[rank])], groups=PAIR) for rank in range(4)]
    evidence = job(*ranks, frozen=range(4))
    assert told(evidence) == (Cause.SKIPPED_COLLECTIVE, Certainty.LIKELY, (0,))
    assert diagnose(evidence).findings[0].evidence[0] == (
        "rank 0 left out all_reduce at train.py:15 in main, which it made in every turn before"
    )
    shown = diagnose(evidence).findings[0].divergence
    assert (shown.group.name, shown.seq, shown.by_rank[0].state) == ("pair", 4, OperationState.ABSENT)


def test_in_the_first_turn_nobody_can_be_told():
    last = {0: [SUM, send(1)], 1: [SUM, OWN], 2: [SUM, send(3), recv(1)], 3: [SUM, recv(2), send(0)]}
    evidence = job(*(trace(rank, held(last[rank]), groups=PAIR) for rank in range(4)), frozen=range(4))
    assert told(evidence)[2] == ()


def test_a_rank_that_comes_to_the_end_of_its_loop_has_not_left_its_way():
    """In the last turn 1 sends nothing to 2; the others are, for the first time, at what follows the loop."""
    last = {0: [*ring_after_sums(0), MEET], 1: [SUM, OWN, recv(0), MEET], 2: [SUM, send(3), recv(1)]}
    last[3] = [*ring_after_sums(3), MEET]
    ranks = [trace(rank, [*ring_after_sums(rank) * 3, *held(last[rank])], groups=PAIR) for rank in range(4)]
    assert told(job(*ranks, frozen=range(4)))[2] in ((), (1,))


def once(last):
    """Four ranks in the first turn of a ring, even ones sending first."""
    return job(*(trace(rank, [*operations[:-1], replace(operations[-1], done=False)]) for rank, operations in last.items()))


def whole(rank):
    """What a rank does in the first turn of the ring, and the meeting after it."""
    steps = [send((rank + 1) % 4), recv((rank - 1) % 4)]
    return [*(steps if rank % 2 == 0 else reversed(steps)), MEET]


def test_a_rank_that_sends_less_often_than_all_that_make_the_same_calls():
    last = {0: whole(0), 1: [recv(0), MEET], 2: [send(3), recv(1)], 3: whole(3)}
    assert told(once(last)) == (Cause.P2P_MISMATCH, Certainty.LIKELY, (1,))
    assert "made one less than all other ranks" in diagnose(once(last)).findings[0].evidence[0]


def test_a_rank_that_receives_more_often_than_all_that_make_the_same_calls():
    last = {0: whole(0), 1: whole(1), 2: [send(3), recv(1), recv(1)], 3: whole(3)}
    assert told(once(last))[2] == (2,)


def test_ranks_that_play_other_parts_say_nothing():
    """0 and 3 talk to each other from other lines: nobody says how often 1 has to send to 2."""
    apart = {0: [Op("send", line=80, peer=3), MEET], 3: [Op("recv", line=81, peer=0), MEET]}
    assert told(once({0: apart[0], 1: [MEET], 2: [recv(1)], 3: apart[3]}))[2] == ()


# --- let go of


def on(backend, *traces):
    """The same ranks with groups of this backend."""
    return [
        replace(each, groups={name: replace(group, backend=backend) for name, group in each.groups.items()}) for each in traces
    ]


FORGOTTEN = replace(send(1), seen=False, done=False)


def test_a_send_whose_handle_was_dropped():
    ranks = on("cpu:gloo,cuda:gloo", trace(0, [FORGOTTEN, FORGOTTEN, WAITS], world=2), trace(1, [recv(0, done=False)], world=2))
    evidence = job(*ranks, frozen=(0, 1))
    assert told(evidence) == (Cause.P2P_MISMATCH, Certainty.LIKELY, (0,))
    by_rank = diagnose(evidence).findings[0].divergence.by_rank
    assert (by_rank[0].state, by_rank[1].state) == (OperationState.MISMATCHED, OperationState.WAITING)
    assert by_rank[0].operation.call.site.innermost.line == 20
    soon = job(*ranks, frozen=(0, 1), later_ms=HANG_AFTER // MS - 1)
    assert diagnose(soon).findings == ()


def test_a_recv_whose_handle_was_dropped():
    dropped = replace(recv(0), seen=False, done=False)
    ranks = on("gloo", trace(0, [send(1, done=False)], world=2), trace(1, [dropped, WAITS], world=2))
    assert told(job(*ranks, frozen=(0, 1)))[2] == (1,)


def test_where_no_completion_is_ever_seen_nobody_let_go_of_anything():
    ranks = on("cpu:gloo,cuda:nccl", trace(0, [FORGOTTEN, WAITS], world=2), trace(1, [recv(0, done=False)], world=2))
    assert all(0 not in finding.culprit_ranks for finding in diagnose(job(*ranks, frozen=(0, 1))).findings)


def test_a_send_that_is_held_and_not_done_is_not_forgotten():
    ranks = on("gloo", trace(0, [send(1, done=False), WAITS], world=2), trace(1, [recv(0, done=False)], world=2))
    assert all(finding.culprit_ranks == () for finding in diagnose(job(*ranks, frozen=(0, 1))).findings)


def test_where_the_partners_records_are_lost_nothing_is_claimed_of_it():
    lost = trace(1, [WAITS], world=2, dropped=5)
    (finding,) = diagnose(job(trace(0, [recv(1, done=False)], world=2), lost, frozen=(0,), moving=(1,))).findings
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.UNKNOWN, ())
    assert "rank 1 did" in finding.summary


def test_a_partner_whose_records_are_lost_and_that_works_may_still_come():
    lost = trace(1, [MEET], world=2, dropped=5)
    assert diagnose(job(trace(0, [recv(1, done=False)], world=2), lost, frozen=(0,), moving=(1,))).findings == ()


def test_many_waits_for_ranks_whose_records_are_lost_are_one_finding():
    world = 24
    waiting = [trace(rank, [recv(rank + 1, done=False)], world=world) for rank in range(0, world, 2)]
    lost = [trace(rank, [WAITS], world=world, dropped=5) for rank in range(1, world, 2)]
    (finding,) = diagnose(job(*waiting, *lost, frozen=tuple(range(world)))).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.UNKNOWN, ())
    assert len(finding.evidence) == 9
    assert finding.evidence[0].startswith("Rank 2 waits in recv")
    assert "for rank 3 likewise" in finding.evidence[0]
    assert "3 further waits of that kind" in finding.evidence[-1]
