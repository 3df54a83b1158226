"""``desync watch`` started by a shell on a terminal: the job is as much the user's as without it."""

import contextlib
import os
import pty
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.unit.watch.test_watch import LATE_S

ASKS = """
import os
print("pids", os.getppid(), os.getpid(), "end", flush=True)
print("hello", input("name? "))
"""
COUNTS = """
import os, signal, sys
counts = {"SIGINT": 0, "SIGUSR1": 0}
def count(number, frame):
    counts[signal.Signals(number).name] += 1
    print(counts, flush=True)
signal.signal(signal.SIGINT, count)
signal.signal(signal.SIGUSR1, count)
print("pids", os.getppid(), os.getpid(), "end", flush=True)
sys.stdin.readline()
"""


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.pid, self._leader = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            environment = {**os.environ, "PS1": "", "TERM": "dumb"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        self.shown = ""
        self.type("stty -echo; echo be''gin\n")
        self.until("begin")

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def until(self, words: str) -> str:
        """What was shown before ``words``, which must come."""
        os.set_blocking(self._leader, False)
        self.wait(lambda: words in self._read(), words)
        before, _, self.shown = self.shown.partition(words)
        return before

    def _read(self) -> str:
        with contextlib.suppress(OSError):  # nothing there
            self.shown += os.read(self._leader, 65536).decode(errors="replace")
        return self.shown

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LATE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}: {self.shown}"
            time.sleep(0.02)

    def watch(self, program: str, more: str = "", before: str = "") -> tuple[psutil.Process, psutil.Process]:
        """Start ``desync watch`` over a Python program that says its pids; returns watcher and job."""
        Path(f"/proc/{self.pid}/cwd/job.py").write_text(program)
        self.type(f"{before}{sys.executable} -m desync watch --run-dir run -- {sys.executable} job.py {more}\n")
        self.until("pids ")
        watcher, job = map(int, self.until(" end").split())
        return psutil.Process(watcher), psutil.Process(job)

    def status(self) -> str:
        self.until("run/report.html")
        self.type("echo status=$?.\n")
        self.until("status=")
        return self.until(".")

    def foreground(self) -> int:
        return os.tcgetpgrp(self._leader)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._leader)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


@pytest.mark.parametrize("more", ["", "2>&1 | cat"])
def test_a_job_may_ask_its_user(shell: Shell, more: str) -> None:
    shell.watch(ASKS, more)
    shell.until("name? ")
    shell.type("bob\n")
    shell.until("hello bob")
    assert shell.status() == "0"


def test_a_job_whose_input_is_a_file_may_ask_at_the_terminal(shell: Shell) -> None:
    shell.watch(ASKS.replace("input(", "(lambda text: print(text) or open('/dev/tty').readline())("), "</dev/null")
    shell.until("name? ")
    shell.type("bob\n")
    shell.until("hello bob")
    assert shell.status() == "0"


def test_ctrl_c_reaches_the_job_once_and_is_noted(shell: Shell, tmp_path: Path) -> None:
    watcher, _ = shell.watch(COUNTS)
    shell.type("\x03")
    shell.until("{'SIGINT': 1, 'SIGUSR1': 0}")
    # The watcher takes signals in the order of their numbers: when it hands this one on it is through with the other.
    watcher.send_signal(signal.SIGUSR1)
    shell.until("'SIGUSR1': 1}")
    shell.type("\n")
    assert shell.status() == "0"
    assert "'SIGINT': 2" not in (tmp_path / "run" / "output.log").read_text()
    assert "the terminal sent SIGINT to the job" in (tmp_path / "run" / "report.json").read_text()


def test_ctrl_c_ends_a_job_that_reads(shell: Shell) -> None:
    shell.watch(ASKS)
    shell.until("name? ")
    shell.type("\x03")
    shell.until("KeyboardInterrupt")
    assert shell.status() == "130"


def test_ctrl_z_stops_job_and_watcher_and_both_go_on(shell: Shell) -> None:
    both = shell.watch(ASKS)
    shell.until("name? ")
    shell.type("\x1a")
    shell.until("Stopped")
    assert [is_stopped(process) for process in both] == [True, True]
    shell.type("fg\n")
    shell.wait(lambda: not any(map(is_stopped, both)), "going on")
    shell.type("bob\n")
    shell.until("hello bob")
    assert shell.status() == "0"


def test_a_job_that_was_started_in_the_background_and_reads_can_still_be_ended_by_ctrl_c(shell: Shell) -> None:
    watcher, job = shell.watch(ASKS, "&")
    shell.wait(lambda: is_stopped(job), "stop")
    shell.type("fg\n")
    shell.wait(lambda: shell.foreground() == os.getpgid(watcher.pid), "foreground")
    shell.type("\x03")
    assert shell.status() == "130"


def test_ctrl_z_does_nothing_where_no_shell_could_continue(shell: Shell) -> None:
    _, job = shell.watch(COUNTS, before="exec ")
    shell.type("\x1a")
    job.send_signal(signal.SIGUSR1)
    shell.until("'SIGUSR1': 1}")
    shell.type("\n")
    shell.until("run/report.html")
