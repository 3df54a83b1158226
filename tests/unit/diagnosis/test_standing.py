from __future__ import annotations

from dataclasses import replace

import pytest

from desync.diagnosis import diagnose
from desync.model import Activity, Cause, Certainty, Evidence, Frame, KernelKills, Motion, RankStacks, Stack, Status

from .jobs import HANG_AFTER, MS, START, Op, job, left, trace

WAITING = Op(line=20, done=False)
ALL = [trace(rank, [Op(), WAITING]) for rank in range(4)]


def with_state(evidence: Evidence, rank: int, state: str, since: int = START, **more) -> Evidence:
    motion = Motion.UNKNOWN if state == "disk-sleep" else Motion.FROZEN
    found = Activity(rank, motion, since=since, process_state=state, **more)
    return replace(evidence, activities={**evidence.activities, rank: found})


def first(evidence: Evidence):
    return diagnose(evidence).findings[0]


@pytest.mark.parametrize("state", ["stopped", "tracing-stop"])
def test_a_rank_that_is_stopped_inside_an_operation_of_all_is_named(state):
    finding = first(with_state(job(*ALL), 2, state))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.STALLED_RANK, (2,))
    assert finding.certainty is Certainty.LIKELY
    assert "stopped in the middle of all_reduce #2" in finding.summary
    assert "ranks 0-1,3 wait there" in finding.summary
    assert "kill -CONT" in finding.advice


def test_one_that_was_stopped_a_moment_ago_is_not():
    evidence = job(*ALL)
    assert evidence.observed_at is not None
    recent = evidence.observed_at - HANG_AFTER + MS
    assert first(with_state(evidence, 2, "stopped", since=recent)).cause is Cause.COMMUNICATION_STALLED


def test_a_stopped_rank_that_nobody_waits_for_is_no_finding():
    done = [trace(rank, [Op(), Op()]) for rank in range(4)]
    assert diagnose(with_state(job(*done), 2, "stopped")).findings == ()


def test_an_absent_rank_that_is_stopped_is_told_so():
    waiting = [trace(rank, [Op(), WAITING]) for rank in (0, 1, 3)]
    finding = first(with_state(job(*waiting, trace(2, [Op()])), 2, "stopped"))
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (2,))
    assert "SIGSTOP" in finding.summary
    assert "kill -CONT" in finding.advice


def test_disk_sleep_inside_an_operation_of_all_is_evidence_and_nobodys_fault():
    finding = first(with_state(job(*ALL), 2, "disk-sleep"))
    assert (finding.cause, finding.culprit_ranks) == (Cause.COMMUNICATION_STALLED, ())
    assert any("disk-sleep" in line and "rank 2" in line for line in finding.evidence)


def test_what_a_stalled_rank_waits_for_is_said_beside_its_place():
    waiting = [trace(rank, [Op(), WAITING]) for rank in (0, 1, 3)]
    evidence = with_state(job(*waiting, trace(2, [Op()])), 2, "sleeping", waits_for="waits for room in a full queue")
    stack = Stack("MainThread", (Frame("put", "queue.py", 9), Frame("load", "train.py", 31)))
    summary = first(replace(evidence, stacks=(RankStacks(2, "py-spy", None, (stack,)),))).summary
    assert "(in load, train.py:31; waits for room in a full queue)" in summary


@pytest.mark.parametrize(
    ("kills", "said", "advised"),
    [
        (KernelKills((1, 3), 2, in_cgroup=True), "2 processes in the cgroup of ranks 1,3", "want of memory"),
        (KernelKills((0, 1, 2, 3), 1, in_cgroup=False), "a process somewhere on this machine", "Look for who sent"),
    ],
)
def test_what_the_kernel_ended_for_want_of_memory_is_evidence_of_a_kill(kills, said, advised):
    killed = trace(3, [Op()], exit=left(2, -9, announced=False))
    evidence = replace(job(*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), killed), kernel_kills=(kills,))
    finding = first(evidence)
    assert (finding.cause, finding.culprit_ranks) == (Cause.KILLED, (3,))
    assert any(said in line for line in finding.evidence)
    assert advised in finding.advice


def test_the_kernels_kills_explain_no_other_signal():
    killed = trace(3, [Op()], exit=left(2, -11, announced=False))
    evidence = job(*(trace(rank, [Op(), WAITING]) for rank in (0, 1, 2)), killed)
    finding = first(replace(evidence, kernel_kills=(KernelKills((3,), 1, in_cgroup=True),)))
    assert not any("want of memory" in line for line in (*finding.evidence, finding.advice))
