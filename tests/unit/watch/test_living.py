from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from desync.diagnosis.living import interpret_living
from desync.evidence.standing import WAIT, Standing
from desync.model import Activity, Call, CallSite, Frame, Kind, Motion, RankStacks, RankState, Stack
from desync.stacks.pyspy import TakenStacks
from desync.watch import living
from desync.watch.living import look, look_at_run, motion, peek
from desync.watch.ranks import LivingJob

C10D = "/env/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = "/env/site-packages/torch/distributed/c10d_logger.py"
USED_NOTHING = Activity(0, Motion.FROZEN)
USED_MUCH = Activity(0, Motion.MOVING)
NOT_KNOWN = Activity(0, Motion.UNKNOWN)


def inside(op: str = "all_reduce", line: int = 40, deeper: int = 1) -> Standing:
    kind = Kind.GROUP if op == "init_process_group" else Kind.COLLECTIVE
    user = Frame("main", "/job/train.py", line)
    return Standing(Call(op, kind, site=CallSite((user,))), True, (Frame(op, C10D, deeper), user), is_main=True)


def outside(line: int = 7, function: str = "main") -> Standing:
    return Standing(None, None, (Frame(function, "/job/train.py", line),), is_main=True)


@pytest.mark.parametrize(
    ("first", "second", "used", "ran", "part", "expected"),
    [
        # In a call: it stands only if its main thread did not run.
        (inside(), inside(), USED_NOTHING, False, 0.0, Motion.FROZEN),
        (inside(), inside(), USED_MUCH, False, 0.0, Motion.FROZEN),
        (inside(), inside(), USED_NOTHING, True, 0.001, Motion.MOVING),
        (inside(), inside(), USED_MUCH, True, 0.99, Motion.UNKNOWN),
        (inside(), inside(), USED_NOTHING, None, None, Motion.UNKNOWN),
        (inside(), inside(deeper=2), USED_NOTHING, False, 0.0, Motion.MOVING),
        (inside(), inside(line=41), USED_NOTHING, True, 0.01, Motion.MOVING),
        (inside("init_process_group"), inside("init_process_group"), USED_NOTHING, True, 0.01, Motion.FROZEN),
        (inside("backward"), inside("backward"), USED_MUCH, True, 0.99, Motion.MOVING),
        (inside("backward"), inside("backward"), USED_MUCH, False, 0.0, Motion.MOVING),
        (inside("backward"), inside("backward"), USED_NOTHING, False, 0.0, Motion.FROZEN),
        (inside("forward"), inside("forward"), USED_MUCH, True, 0.99, Motion.MOVING),
        (inside(WAIT), inside(WAIT), USED_MUCH, True, 0.99, Motion.UNKNOWN),
        (inside(), outside(), USED_NOTHING, True, 0.01, Motion.MOVING),
        # Outside: it stands if it used nothing to speak of and did not go on to other functions.
        (outside(), outside(), USED_NOTHING, False, 0.0, Motion.FROZEN),
        (outside(), outside(line=9), USED_NOTHING, True, 0.001, Motion.FROZEN),
        (outside(), outside(function="load"), USED_NOTHING, True, 0.001, Motion.MOVING),
        (outside(), outside(), USED_MUCH, True, 0.5, Motion.MOVING),
        (outside(), outside(), USED_NOTHING, True, 0.4, Motion.MOVING),
        (outside(), outside(), NOT_KNOWN, None, None, Motion.UNKNOWN),
        # Without stacks there is only what the process used.
        (None, inside(), USED_NOTHING, False, 0.0, Motion.FROZEN),
        (None, None, USED_MUCH, True, 0.9, Motion.MOVING),
    ],
)
def test_whether_a_rank_moved(
    first: Standing | None, second: Standing | None, used: Activity, ran: bool | None, part: float | None, expected: Motion
) -> None:
    assert motion(first, second, used, ran, part) is expected


@pytest.fixture
def sleepers() -> Iterator[dict[int, int]]:
    """Two processes that do nothing, as ranks 0 and 1."""
    processes = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
    yield {rank: process.pid for rank, process in enumerate(processes)}
    for process in processes:
        process.kill()
        process.wait()


def stacks(rank: int, *frames: Frame) -> RankStacks:
    return RankStacks(rank, "py-spy", 1, (Stack("MainThread", frames),))


BARRIER = (Frame("barrier", C10D, 1), Frame("wrapper", LOGGER, 2), Frame("main", "/job/train.py", 40))
LOADS = (Frame("load", "/job/data.py", 7), Frame("main", "/job/train.py", 41))


def taking(*seen: Mapping[int, tuple[Frame, ...]], given: str = "") -> living.TakeStacks:
    """py-spy, of which each look sees the next of ``seen`` (the last one again and again)."""
    looks = iter(seen)
    last: list[Mapping[int, tuple[Frame, ...]]] = []

    def take(pids: Mapping[int, int]) -> TakenStacks:
        now = next(looks, last[0] if last else {})
        last[:] = [now]
        values = ({}, {"args": "()", "kwargs": given}, {})
        return TakenStacks(
            tuple(stacks(rank, *frames) for rank, frames in now.items()), variables=dict.fromkeys(now, (values,))
        )

    return take


def test_two_looks_make_evidence(sleepers: dict[int, int]) -> None:
    job = LivingJob(sleepers, 2, None, command=("torchrun",), started=5.5, all_here=True, notes=("a note",))
    evidence = look(job, 1.2, taking({0: BARRIER, 1: LOADS}))
    assert evidence is not None
    assert (evidence.job.world_size, evidence.job.command, evidence.job.started) == (2, ("torchrun",), 5_500_000_000)
    assert evidence.notes == ("a note", living.UNSEEN)
    waiting, outside = evidence.traces
    (operation,) = waiting.operations.rows(0)
    assert (operation.call.op, operation.group, operation.pending, operation.entered) == ("barrier", "0", True, None)
    assert waiting.groups["0"].ranks == (0, 1)
    assert (len(outside.operations), outside.pid) == (0, sleepers[1])
    activity = evidence.activities[1]
    assert (activity.motion, activity.ran) == (Motion.FROZEN, False)
    assert evidence.observed_at is not None
    assert activity.since is not None
    assert evidence.observed_at - activity.since >= 1_200_000_000
    assert set(evidence.memory) == {0, 1}
    (finding,) = interpret_living(evidence).findings
    assert finding.culprit_ranks == (1,)


def test_a_rank_that_was_elsewhere_at_the_second_look_moves_and_is_in_no_call(sleepers: dict[int, int]) -> None:
    job = LivingJob(sleepers, 2, None, all_here=True)
    evidence = look(job, 1.0, taking({0: BARRIER, 1: BARRIER}, {0: LOADS, 1: BARRIER}))
    assert evidence is not None
    assert [len(trace.operations) for trace in evidence.traces] == [0, 1]
    (claim,) = evidence.claims
    assert (claim.ranks, claim.op) == ((0,), "barrier")
    assert claim.text == "moves; in barrier at train.py:40 in main, then at data.py:7 in load"
    assert interpret_living(evidence).findings == ()


def test_a_call_in_a_group_that_was_given_is_kept_apart(sleepers: dict[int, int]) -> None:
    group = '{"group": <torch._C._distributed_c10d.ProcessGroup at 0x7f>}'
    evidence = look(LivingJob(sleepers, 4, None), 1.0, taking({0: BARRIER, 1: BARRIER}, given=group))
    assert evidence is not None
    assert {operation.group for trace in evidence.traces for operation in trace.operations.rows(trace.rank)} == {living.OTHER}
    assert interpret_living(evidence).findings == ()


def test_a_rank_that_has_ended_is_told_and_a_job_that_has_ended_is_none(sleepers: dict[int, int]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    evidence = look(LivingJob({0: sleepers[0], 1: gone.pid}, 2, None, all_here=True), 1.0, taking({0: BARRIER}))
    assert evidence is not None
    diagnosis = interpret_living(evidence)
    assert diagnosis.states == {0: RankState.WAITING, 1: RankState.EXITED}
    assert diagnosis.findings[0].culprit_ranks == (1,)
    assert look(LivingJob({0: gone.pid}, 1, None, all_here=True), 1.0, taking({})) is None


def test_a_rank_that_is_stopped_waits_for_nobody_wherever_it_stands(sleepers: dict[int, int]) -> None:
    os.kill(sleepers[1], signal.SIGSTOP)
    evidence = look(LivingJob(sleepers, 2, None, all_here=True), 1.2, taking({0: BARRIER, 1: BARRIER}))
    assert evidence is not None
    (finding,) = interpret_living(evidence).findings
    assert finding.culprit_ranks == (1,)
    assert "(is stopped: somebody sent SIGSTOP" in finding.summary


def test_without_stacks_there_is_what_the_kernel_says(sleepers: dict[int, int]) -> None:
    os.kill(sleepers[1], signal.SIGSTOP)
    evidence = look(LivingJob(sleepers, 2, None, all_here=True), 1.2, lambda pids: TakenStacks(notes=("no right",)))
    os.kill(sleepers[1], signal.SIGCONT)
    assert evidence is not None
    assert evidence.notes == ("no right", living.UNSEEN)
    assert {one.motion for one in evidence.activities.values()} == {Motion.FROZEN}
    assert evidence.activities[1].waits_for == "is stopped: somebody sent SIGSTOP, or a debugger holds it"
    assert interpret_living(evidence).findings == ()


WRAP = Frame("_wrap", "/env/site-packages/torch/multiprocessing/spawn.py", 90)
WORKER = Frame("_worker_loop", "/env/site-packages/torch/utils/data/_utils/worker.py", 3)


@pytest.mark.parametrize(
    ("seen", "ranks"),
    [
        ({5: (*LOADS, WRAP), 6: BARRIER, 7: (WORKER,)}, {5, 6}),
        ({5: LOADS, 6: LOADS}, set()),
        ({5: (WORKER,), 6: (WORKER,)}, set()),
        ({}, set()),
    ],
)
def test_processes_that_a_program_spawned_are_ranks_if_one_of_them_is_where_only_ranks_are(
    seen: dict[int, tuple[Frame, ...]], ranks: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(living, "take_stacks", taking(seen))
    monkeypatch.setattr(living, "has_process_group", lambda pid: False)
    assert set(peek([5, 6, 7])) == ranks


def test_a_run_without_a_living_rank_gives_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "journals").mkdir()
    assert look_at_run(tmp_path, 1.0) is None
