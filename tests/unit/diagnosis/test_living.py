from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from desync.diagnosis.living import interpret_living, summary
from desync.model import (
    Activity,
    Call,
    CallSite,
    Cause,
    Certainty,
    Claim,
    ClaimKind,
    Diagnosis,
    Evidence,
    Exit,
    Finding,
    Frame,
    Group,
    Job,
    Kind,
    Motion,
    OperationState,
    OperationTable,
    RankStacks,
    RankState,
    Stack,
    Status,
    Trace,
)

SECOND = 1_000_000_000
BEGUN = 1000 * SECOND
GROUP_CALLS = {"init_process_group", "new_group", "destroy_process_group"}


def call(op: str, line: int, peer: int | None = None) -> Call:
    kind = Kind.GROUP if op in GROUP_CALLS else Kind.P2P if op in ("send", "recv") else Kind.COLLECTIVE
    return Call(op, kind, site=CallSite((Frame("main", "/job/train.py", line),)), peer=peer)


def scene(*does: str, world: int | None = None, seconds: int = 2) -> Evidence:
    """What each rank does, in words.

    ``barrier@40`` stands in that call, ``+`` behind it keeps a core busy there, ``~`` in front is another group, ``recv@5>1``
    has a peer; ``still@7`` and ``polls@7`` stand in no call, ``works@7`` moves, ``passes@7`` moves through calls, ``hidden`` is
    alive, ``gone`` has ended, ``away`` is on another machine.
    """
    ranks = dict(enumerate(does))
    size = world or len(ranks)
    default = Group("0", tuple(range(size)), "default_pg")
    traces, activities, stacks, claims = [], {}, [], []
    for rank, what in ranks.items():
        word, _, rest = what.partition("@")
        number = int(rest.rstrip("+").partition(">")[0] or 0)
        if word == "away":
            continue
        if word == "gone":
            traces.append(Trace(rank, exit=Exit(None), world_size=size))
            continue
        motion, ran = Motion.FROZEN, False
        if word in ("works", "passes"):
            motion, ran = Motion.MOVING, True
        elif word == "polls":
            ran = True
        elif word == "hidden" or what.endswith("+"):
            motion, ran = Motion.UNKNOWN, True
        used = 1.0 if what.endswith("+") or word == "works" else 0.0
        activities[rank] = Activity(rank, motion, since=BEGUN, process_state="sleeping", cpu_s=used, io_bytes=0, ran=ran)
        frames = (Frame("load", "/job/data.py", number), Frame("main", "/job/train.py", 9))
        stacks.append(RankStacks(rank, "py-spy", BEGUN, (Stack("MainThread", frames),)))
        if word == "passes":
            claims.append(Claim(ClaimKind.MOVING, (rank,), "moves", op="all_reduce"))
        if word in ("still", "polls", "works", "passes", "hidden"):
            traces.append(Trace(rank, groups={"0": default}, world_size=size))
            continue
        peer = int(rest.partition(">")[2]) if ">" in rest else None
        group = Group("another group", (rank,)) if word.startswith("~") else default
        columns = [array("q", [value]) for value in (0, 0, 1, 0, 0, 0, 0)]
        table = OperationTable((call(word.lstrip("~"), number, peer),), (group.name,), *columns)
        traces.append(Trace(rank, table, groups={group.name: group, "0": default}, world_size=size))
    return Evidence(
        job=Job(world_size=size, nodes=("here",)),
        traces=tuple(traces),
        activities=activities,
        stacks=tuple(stacks),
        observed_at=BEGUN + seconds * SECOND,
        claims=tuple(claims),
    )


def only(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    assert diagnosis.status is finding.status
    return finding


def test_the_rank_that_stands_elsewhere_while_the_others_wait_is_the_odd_one() -> None:
    diagnosis = interpret_living(scene("all_reduce@40", "all_reduce@40", "still@7", "all_reduce@40"))
    finding = only(diagnosis)
    assert (finding.status, finding.cause, finding.certainty) == (Status.HANG, Cause.STALLED_RANK, Certainty.POSSIBLE)
    assert finding.culprit_ranks == (2,)
    where = "Rank 2 stands still outside of any collective, at data.py:7 in load"
    assert finding.summary == f"{where}; ranks 0-1,3 wait in all_reduce at train.py:40 in main."
    assert finding.divergence is not None
    assert {rank: at.state for rank, at in finding.divergence.by_rank.items()} == {
        0: OperationState.WAITING,
        1: OperationState.WAITING,
        2: OperationState.ABSENT,
        3: OperationState.WAITING,
    }
    assert diagnosis.states[2] is RankState.RUNNING
    assert diagnosis.states[0] is RankState.WAITING


def test_a_long_look_makes_it_likely_and_ranks_elsewhere_keep_it_possible() -> None:
    assert only(interpret_living(scene("barrier@4", "still@7", seconds=11))).certainty is Certainty.LIKELY
    long = scene("barrier@4", "still@7", "away", seconds=11)
    assert only(interpret_living(long)).certainty is Certainty.POSSIBLE


def test_a_rank_at_work_for_which_others_wait_is_slow_and_no_hang() -> None:
    finding = only(interpret_living(scene("barrier@40", "works@7", "barrier@40")))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.SLOW, Cause.SLOW_RANK, (1,))


@pytest.mark.parametrize(
    ("does", "culprits"),
    [
        (("barrier@4", "polls@7"), (1,)),  # the other certainly stands, so this one has not been there either
        (("barrier@4+", "still@7"), (1,)),
        (("init_process_group@3", "init_process_group@3", "still@1"), (2,)),
        (("wait@20", "wait@21", "still@7"), (2,)),
        (("backward@20", "backward@20", "wait@9", "still@7"), (3,)),
        (("recv@5>1", "still@7"), (1,)),
        (("recv@5>1", "recv@5>2", "still@7", "still@8"), (2,)),
        (("~all_reduce@4", "~all_gather@5", "~all_reduce@4", "still@7"), (3,)),
    ],
)
def test_odd_ones(does: tuple[str, ...], culprits: tuple[int, ...]) -> None:
    finding = only(interpret_living(scene(*does)))
    assert (finding.status, finding.culprit_ranks) == (Status.HANG, culprits)
    starting = does[0].startswith("init")
    assert finding.cause is (Cause.RENDEZVOUS if starting else Cause.STALLED_RANK)


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (("barrier@4+", "polls@7"), "rank 1 stood still"),  # both may go round in a loop
        (("barrier@4+", "works@7"), "rank 1 moved"),
        (("barrier@4", "still@7", "works@8"), "rank 2 is outside as well"),
        (("barrier@4", "still@7", "hidden"), "rank 2 is outside as well"),
        (("barrier@4", "still@7", "still@7"), "may be the ones that are right"),
        (("barrier@4", "passes@7", "passes@7"), "ranks 1-2 moved"),
        (("~all_reduce@4", "~all_reduce@4", "works@7"), "members cannot be seen"),
        (("~all_reduce@4", "still@7", "away"), "members cannot be seen"),
        (("init_process_group@3", "works@1"), "rank 1 moved"),
        (("recv@5>2", "still@7", "passes@8"), "rank 1 stood still"),
        (("still@7", "still@8"), "ranks 0-1 stood still"),
        (("barrier@4+", "barrier@4+"), "in calls of torch.distributed"),
        (("barrier@4", "barrier@4", "away", "away"), "nobody on this machine is odd, and ranks 2-3 could not be seen"),
        (("barrier@4", "all_reduce@5+"), "in calls of torch.distributed"),
        (("destroy_process_group@9", "gone"), "rank 0 was in a call"),
        (("barrier@4+", "gone"), "rank 0 was in a call"),
    ],
)
def test_nobody_is_blamed_where_two_readings_are_open(does: tuple[str, ...], words: str) -> None:
    evidence = scene(*does)
    diagnosis = interpret_living(evidence)
    assert diagnosis.findings == ()
    assert diagnosis.status is Status.UNKNOWN
    assert words in summary(evidence)


def test_ranks_that_all_move_are_healthy_also_where_one_sleeps_in_each_of_its_turns() -> None:
    for does in (("works@7", "passes@7", "works@8"), ("passes@7", "polls@7", "passes@7")):
        evidence = scene(*does)
        assert interpret_living(evidence).findings == ()
        assert interpret_living(evidence).status is Status.HEALTHY
        assert summary(evidence) == "All 3 ranks move: no rank stood still in 2.0 s of looking."
    assert interpret_living(scene("works@7", "polls@7")).status is Status.UNKNOWN


def test_without_stacks_nobody_is_healthy_or_odd() -> None:
    evidence = replace(scene("works@7", "still@7"), stacks=())
    assert interpret_living(evidence).findings == ()
    assert interpret_living(evidence).status is Status.UNKNOWN
    assert "No stack could be read" in summary(evidence)
    moving = replace(scene("works@7", "works@7"), stacks=())
    assert interpret_living(moving).status is Status.UNKNOWN


def test_all_in_one_call_blames_nobody_and_not_even_that_where_its_data_flows() -> None:
    finding = only(interpret_living(scene("all_reduce@4", "all_reduce@4")))
    assert (finding.cause, finding.certainty) == (Cause.COMMUNICATION_STALLED, Certainty.POSSIBLE)
    assert finding.culprit_ranks == ()
    other = only(interpret_living(scene("~all_reduce@4", "~all_reduce@4")))
    assert (other.status, other.cause, other.culprit_ranks) == (Status.HANG, Cause.UNKNOWN, ())
    evidence = scene("all_reduce@4", "all_reduce@4")
    busy = {**evidence.activities, 1: replace(evidence.activities[1], io_bytes=1 << 20)}
    assert interpret_living(replace(evidence, activities=busy)).findings == ()


@pytest.mark.parametrize(
    ("does", "culprits"),
    [
        (("backward@39", "barrier@41", "backward@39"), (1,)),
        (("all_reduce@39", "barrier@41", "all_reduce@39", "wait@3"), (1,)),
        (("backward@40", "forward@24", "backward@40"), (1,)),
        (("broadcast@39", "broadcast@41", "broadcast@41"), ()),  # written once for the root, once for the others
        (("all_reduce@39", "wait@3", "all_reduce@39"), ()),
        (("wait@39", "wait@41"), ()),
        (("all_reduce@39", "barrier@41"), ()),
        (("~all_reduce@39", "~barrier@41", "~all_reduce@39"), ()),
        (("all_reduce@39", "barrier@41", "all_reduce@39", "away"), ()),
    ],
)
def test_of_different_calls_the_few_are_odd_if_all_are_in_one_group(does: tuple[str, ...], culprits: tuple[int, ...]) -> None:
    finding = only(interpret_living(scene(*does)))
    assert (finding.status, finding.cause, finding.certainty) == (Status.HANG, Cause.UNKNOWN, Certainty.POSSIBLE)
    assert finding.culprit_ranks == culprits


def test_a_circle_of_sends_and_recvs_blames_nobody() -> None:
    finding = only(interpret_living(scene("recv@5>1", "recv@5>0")))
    assert (finding.cause, finding.culprit_ranks) == (Cause.P2P_MISMATCH, ())
    assert "rank 0 stands in recv at train.py:5 in main for rank 1" in finding.summary


def test_a_rank_that_has_no_process_any_more_is_named() -> None:
    diagnosis = interpret_living(scene("barrier@4", "gone", "barrier@4"))
    finding = only(diagnosis)
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.UNKNOWN, (1,))
    assert diagnosis.states[1] is RankState.EXITED
    assert interpret_living(scene("barrier@4", "gone", "still@7")).findings == ()


def test_what_a_rank_does_of_which_no_finding_speaks_is_noted_once_for_all_alike() -> None:
    notes = interpret_living(scene("still@7", "still@7", "passes@3")).notes
    assert notes == ("rank 2: moves", "ranks 0-1: stands still at data.py:7 in load")


# --- with records


def recorded(awaited: Motion, waited_s: int, since_s: int = 2) -> Evidence:
    """Rank 0 is in its second operation, which rank 1 has not entered."""
    now = BEGUN + 100 * SECOND
    group = Group("0", (0, 1), "default_pg", "gloo")
    traces = []
    for rank, rows in ((0, 2), (1, 1)):
        entered = [now - 50 * SECOND, now - waited_s * SECOND][:rows]
        columns = ([0] * rows, [0] * rows, [1, 2][:rows], [0] * rows, entered, [0] * rows, [entered[0] + 1, 0][:rows])
        table = OperationTable((call("all_reduce", 40),), ("0",), *(array("q", column) for column in columns))
        traces.append(Trace(rank, table, groups={"0": group}, world_size=2))
    return Evidence(
        job=Job(world_size=2),
        traces=tuple(traces),
        activities={1: Activity(1, awaited, since=now - since_s * SECOND, process_state="sleeping", cpu_s=0.0)},
        observed_at=now,
    )


def test_with_records_a_rank_that_was_awaited_during_the_look_is_named_with_less_certainty() -> None:
    finding = only(interpret_living(recorded(Motion.FROZEN, waited_s=4)))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.STALLED_RANK, (1,))
    assert finding.certainty is Certainty.POSSIBLE
    assert finding.divergence is not None
    assert finding.divergence.seq == 2
    slow = only(interpret_living(recorded(Motion.MOVING, waited_s=4)))
    assert (slow.status, slow.cause) == (Status.SLOW, Cause.SLOW_RANK)


def test_with_records_the_watchers_own_verdict_stands() -> None:
    assert only(interpret_living(recorded(Motion.FROZEN, waited_s=30, since_s=20))).certainty is Certainty.LIKELY


def test_with_records_a_short_wait_is_what_every_job_does_all_the_time() -> None:
    diagnosis = interpret_living(recorded(Motion.MOVING, waited_s=0))
    assert diagnosis.findings == ()
    assert diagnosis.status is Status.HEALTHY
