"""What a job gets from the user through the watcher: signals that are sent to it, and open files."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from desync.watch import session
from desync.watch.observer import Observer
from desync.watch.receiver import Receiver
from desync.watch.session import Session
from desync.watch.signals import SignalQueue
from tests.unit.watch.test_watch import LATE_S, play, watching

WITH_CHILD = """
import signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
program = "import signal, sys; signal.pthread_sigmask(signal.SIG_SETMASK, ()); print('ready', flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
child.stdin.close()
print("child", child.wait(), flush=True)
"""


def test_a_signal_that_a_process_sends_reaches_the_launcher_and_not_its_children(tmp_path: Path) -> None:
    with watching(tmp_path, "--", sys.executable, "-c", WITH_CHILD) as watched:
        watched.until(lambda: "ready" in watched.text("out"), "job")
        os.kill(watched.process.pid, signal.SIGUSR1)
        assert watched.wait() == 0
    assert watched.text("out") == "ready\nchild 0\n"


TOLD = """
import os, signal, sys
def told(number, frame):
    print("told", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_what_a_launcher_leaves_behind_when_it_is_asked_to_end_is_asked_too(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    line = f"'{sys.executable}' '{tmp_path}/told.py'; true"
    with watching(tmp_path, "--", "sh", "-c", line) as watched:
        watched.until(lambda: "ready" in watched.text("out"), "job")
        os.kill(watched.process.pid, signal.SIGTERM)
        assert watched.wait() == 128 + signal.SIGTERM
    assert watched.text("out") == "ready\ntold\n"


IGNORES = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print(signal.getsignal(signal.SIGHUP).name, flush=True)
signal.sigwait({signal.SIGUSR1})
"""


def test_a_signal_that_was_ignored_before_asks_nobody_to_end(tmp_path: Path) -> None:
    with watching(tmp_path, "--", sys.executable, "-c", IGNORES, before=("nohup",)) as watched:
        watched.until(lambda: "SIG_IGN" in watched.text("out"), "job")
        os.kill(watched.process.pid, signal.SIGHUP)
        os.kill(watched.process.pid, signal.SIGUSR1)
        assert watched.wait() == 0
    assert not any("SIGHUP" in note for note in watched.report["notes"])


SHOWS_MASK = "import signal; print(*(number.name for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
BLOCKS = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_SETMASK, (%s)); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize("blocked", ["", "SIGUSR1"])
def test_the_job_starts_with_the_signals_blocked_that_were_blocked_before_and_no_others(tmp_path: Path, blocked: str) -> None:
    numbers = f"signal.{blocked}," if blocked else ""
    before = (sys.executable, "-c", BLOCKS % numbers)
    with watching(tmp_path, "--", sys.executable, "-c", SHOWS_MASK, before=before) as watched:
        assert watched.wait() == 0
    assert watched.text("out") == f"{blocked}\n"


def test_a_signal_is_handed_on_though_no_stacks_can_be_taken(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from desync.diagnosis import diagnose
from desync.watch.session import Options, watch
from desync.watch.watchdog import Watchdog
def fail(self):
    raise RuntimeError("can't start new thread")
Watchdog.take_urgent_stacks = fail
sys.exit(watch(Options(("sh", "-c", "echo ready; exec sleep 600"), run_dir=Path("run")), diagnose))
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        run.send_signal(signal.SIGTERM)
        assert run.wait(LATE_S) == 128 + signal.SIGTERM
    notes = json.loads((tmp_path / "run" / "report.json").read_text())["notes"]
    assert "no stacks at SIGTERM: RuntimeError: can't start new thread" in notes


def test_an_order_to_end_that_the_launcher_did_not_outlive_is_heeded(tmp_path: Path) -> None:
    """As with Ctrl-C at a terminal, which ends the launcher while the watcher is busy."""
    program = """
import sys
from pathlib import Path
import psutil
from desync.diagnosis import diagnose
from desync.watch.session import Options, watch
from desync.watch.watchdog import Watchdog
def tick(self):
    Path("busy").touch()
    (job,) = (child for child in psutil.Process().children() if child.name() == "sh")
    while job.status() != psutil.STATUS_ZOMBIE:
        pass
Watchdog.tick = tick
job = "until [ -e busy ]; do sleep 0.01; done; kill -TERM $PPID"
sys.exit(watch(Options(("sh", "-c", job), run_dir=Path("run")), diagnose))
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path) as run:
        assert run.wait(LATE_S) == 0
    notes = json.loads((tmp_path / "run" / "report.json").read_text())["notes"]
    assert "the watcher was sent SIGTERM when the job's launcher had ended" in notes


def test_a_launcher_that_may_not_be_signalled_is_noted_and_watched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    receiver = Receiver(cast("subprocess.Popen[bytes]", SimpleNamespace(pid=os.getpid())), shares_group=False)
    monkeypatch.setattr(os, "kill", refuse)
    taken = session.Taken(signal.SIGUSR1, from_process=True, since=0)
    assert receiver.give(taken) == "SIGUSR1 could not be handed on to the job (Operation not permitted)"


def test_the_number_of_a_launcher_that_was_collected_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch's last steps, as they are when the launcher's number belongs to a stranger by then."""
    monkeypatch.setattr(session, "GRACE_S", 0.2)
    with contextlib.ExitStack() as stack:
        stranger, rank = (stack.enter_context(subprocess.Popen(["sleep", "600"])) for _ in range(2))
        stack.callback(stranger.kill)
        stack.callback(rank.kill)
        ending = Session.__new__(Session)
        ending._asked_to_end = True
        ending.job = cast("subprocess.Popen[bytes]", SimpleNamespace(pid=stranger.pid, returncode=-15))
        ending.receiver = Receiver(ending.job, shares_group=False)
        living = SimpleNamespace(live_pids=lambda: {0: rank.pid} if rank.poll() is None else {})
        ending.observer = cast("Observer", living)
        ending.signals = cast("SignalQueue", SimpleNamespace(wait=time.sleep))
        ending._await_ranks()
        assert (stranger.poll(), rank.wait(LATE_S)) == (None, -15)


def test_a_job_has_the_files_that_the_shell_opened_for_it_and_none_of_desyncs(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("hello\n")
    shell = 'exec "$@" 7<given'
    for job, expected in ((["cat", "/dev/fd/7"], "hello\n"), (["ls", "/proc/self/fd"], "0\n1\n2\n3\n7\n")):
        watch = [sys.executable, "-m", "desync", "watch", "--run-dir", job[0], "--", *job]
        with subprocess.Popen(["bash", "-c", shell, "bash", *watch], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
            shown, _ = run.communicate(timeout=LATE_S)
        assert (run.returncode, shown) == (0, expected)


def test_a_hung_job_that_is_sent_sigterm_ends_whole(tmp_path: Path) -> None:
    with watching(tmp_path, *play("other_operation")) as watched:
        watched.until(lambda: watched.ranks_alive() == 2, "ranks")
        os.kill(watched.process.pid, signal.SIGTERM)
        assert watched.wait() == 128 + signal.SIGTERM
    assert watched.ranks_alive() == 0
