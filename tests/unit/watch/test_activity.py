import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from desync.model import Activity, Motion
from desync.watch.activity import ActivityTracker, ProcessSampler, Sample

S = 1_000_000_000


def tracked(*samples: Sample) -> Activity:
    tracker = ActivityTracker(4)
    for sample in samples:
        tracker.add(sample)
    return tracker.activity


def still(seconds: float, **changes: object) -> Sample:
    fields: dict[str, object] = {"time": int(seconds * S), "state": "sleeping", "cpu_s": 5.0, "io_bytes": 100, "records": 7}
    return Sample(**{**fields, **changes})  # type: ignore[arg-type]  # built from names


def test_a_rank_that_uses_nothing_is_frozen_since_the_first_look() -> None:
    activity = tracked(*(still(10 + n / 2) for n in range(10)))
    assert activity == Activity(4, Motion.FROZEN, since=10 * S, process_state="sleeping", cpu_s=0.0, io_bytes=0)


def test_wakes_are_counted_while_it_stands_still() -> None:
    assert tracked(*(still(10 + n, turns=100 + 2 * n) for n in range(5))).wakes == 8
    assert tracked(still(10, turns=100), still(15)).wakes is None


def test_less_than_a_window_says_nothing() -> None:
    assert tracked(still(10), still(10.5)).motion is Motion.UNKNOWN
    assert ActivityTracker(0).activity.motion is Motion.UNKNOWN


@pytest.mark.parametrize(
    "moves",
    [
        lambda n: {"cpu_s": 5.0 + 0.03 * n},
        lambda n: {"io_bytes": 100 + 10_000 * n},
        lambda n: {"records": 7 + n},
        lambda n: {"stack": ("loader", n)},
    ],
    ids=["cpu", "io", "journal", "stack"],
)
def test_a_rank_that_uses_something_moves_and_is_frozen_when_that_ends(moves: Callable[[int], dict[str, object]]) -> None:
    moving = [still(10 + n, **moves(n)) for n in range(5)]
    activity = tracked(*moving)
    assert (activity.motion, activity.since) == (Motion.MOVING, 10 * S)
    stopped = [still(15 + n, **moves(4)) for n in range(4)]
    activity = tracked(*moving, *stopped)
    assert activity.motion is Motion.FROZEN
    assert activity.since is not None
    assert 14 * S <= activity.since <= 15 * S


def test_heartbeats_and_a_loop_that_polls_are_no_progress() -> None:
    samples = [still(10 + n / 2, cpu_s=5 + 0.004 * n, io_bytes=100 + 200 * n, stack=("wait", n % 2)) for n in range(20)]
    assert tracked(still(9, stack=("wait", 0)), still(9.5, stack=("wait", 1)), *samples).motion is Motion.FROZEN


def test_a_process_that_is_gone_is_unknown() -> None:
    assert tracked(still(10), Sample(12 * S, None)).motion is Motion.UNKNOWN


WORKS = "import time\nprint('ready', flush=True)\nwhile True: pass"
SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
WORKS_IN_A_CHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WORKS!r}])
try:
    sys.stdin.read()
finally:
    child.kill()
    child.wait()
"""


@pytest.mark.parametrize(
    ("program", "motion"),
    [(WORKS, Motion.MOVING), (SLEEPS, Motion.FROZEN), (WORKS_IN_A_CHILD, Motion.MOVING)],
    ids=["works", "sleeps", "works in a child"],
)
def test_real_processes_are_told_apart(program: str, motion: Motion) -> None:
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        sampler, tracker = ProcessSampler(process.pid), ActivityTracker(0)
        deadline = time.monotonic() + 60
        # Samples until the verdict is there: how long that takes is no matter here.
        while tracker.activity.motion is not motion and time.monotonic() < deadline:
            tracker.add(sampler.sample(time.time_ns(), records=0))
            time.sleep(0.05)
        process.stdin.close()
        if program is not WORKS_IN_A_CHILD:
            process.kill()
    assert tracker.activity.motion is motion
    assert sampler.sample(time.time_ns(), records=0).state is None
