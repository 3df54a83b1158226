import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from desync.evidence.liveness import stat_fields
from desync.model import Activity, Motion
from desync.watch.states import StandingRanks

S = 1_000_000_000


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(pid: int) -> bytes:
    fields = stat_fields(pid)
    return fields[0] if fields else b""


def test_a_stopped_process_is_frozen_since_it_was_first_seen_so(sleeper: subprocess.Popen[bytes]) -> None:
    ranks, pids = StandingRanks(), {3: sleeper.pid, 4: os.getpid()}
    ranks.look(pids, 1 * S)
    assert ranks.activities() == {}
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: state(sleeper.pid) == b"T")
    ranks.look(pids, 2 * S)
    assert ranks.activities() == {}, "a moment says nothing"
    ranks.look(pids, 5 * S)
    assert ranks.activities() == {3: Activity(3, Motion.FROZEN, since=2 * S, process_state="stopped")}
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: state(sleeper.pid) == b"S")
    ranks.look(pids, 6 * S)
    assert ranks.activities() == {}


def test_a_rank_that_has_ended_stands_no_more(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: state(sleeper.pid) == b"T")
    ranks = StandingRanks()
    for now in (1 * S, 5 * S):
        ranks.look({3: sleeper.pid}, now)
    assert set(ranks.activities()) == {3}
    ranks.look({}, 6 * S)
    assert ranks.activities() == {}


def test_disk_sleep_says_that_it_lasts_and_not_that_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("desync.watch.states.stat_fields", lambda _pid: [b"D"])
    ranks = StandingRanks()
    for now in (1 * S, 5 * S):
        ranks.look({0: 1}, now)
    assert ranks.activities() == {0: Activity(0, Motion.UNKNOWN, since=1 * S, process_state="disk-sleep")}
