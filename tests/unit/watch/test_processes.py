import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from desync.evidence.liveness import process_start, stat_fields
from desync.watch import processes
from desync.watch.exits import ExitCodes
from desync.watch.processes import ExitWatch, zombie_code

# A grandchild: its parent does not collect its status before it is told to, as a launcher would within moments.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
sys.stdin.readline()
child.stdin.close()
sys.stdin.readline()
child.wait()
"""


class Family:
    """A process that is not our child, with the means to let it end and to have it collected."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        assert parent.stdin is not None
        assert parent.stdout is not None
        self.parent, self._pipe = parent, parent.stdin
        self.pid = int(parent.stdout.readline())

    def tell_parent(self) -> None:
        self._pipe.write("\n")
        self._pipe.flush()


@pytest.fixture
def start() -> Iterator[object]:
    with contextlib.ExitStack() as stack:

        def begin(program: str) -> Family:
            command = [sys.executable, "-c", PARENT, program]
            parent = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            stack.callback(parent.kill)
            return Family(parent)

        yield begin


@pytest.fixture
def watched() -> Iterator[tuple[ExitWatch, threading.Event]]:
    ended = threading.Event()
    watch = ExitWatch()
    watch.on_exit = ended.set
    yield watch, ended
    watch.close()


@pytest.mark.parametrize(
    ("program", "code"),
    [("import sys; sys.stdin.read(); sys.exit(7)", 7), ("import os, sys; sys.stdin.read(); os.kill(os.getpid(), 9)", -9)],
)
def test_the_status_of_a_process_that_is_no_child_is_read_before_its_parent_takes_it(
    start: object, watched: tuple[ExitWatch, threading.Event], program: str, code: int
) -> None:
    watch, ended = watched
    family = start(program)  # type: ignore[operator]  # the fixture's function
    started = process_start(family.pid)
    assert started
    watch.add(family.pid, started)
    watch.add(family.pid, started)
    assert watch.exits() == {}
    family.tell_parent()
    assert ended.wait(60)
    assert watch.exits()[family.pid, started].code == code
    assert watch.exits()[family.pid, started].time is not None
    family.tell_parent()


def test_a_process_that_is_gone_has_ended_and_so_has_one_whose_number_belongs_to_another(
    watched: tuple[ExitWatch, threading.Event],
) -> None:
    watch, ended = watched
    own = process_start(os.getpid())
    assert own
    watch.add(os.getpid(), own - 1)
    assert ended.is_set()
    assert watch.exits()[os.getpid(), own - 1].code is None
    watch.add(os.getpid(), own)
    assert (os.getpid(), own) not in watch.exits(), "the end of another process with its number is not its own"
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    watch.add(child.pid, 1)
    assert (child.pid, 1) in watch.exits()


@pytest.mark.parametrize("start_is_known", [True, False])
@pytest.mark.parametrize("has_function", [True, False])
def test_without_pidfd_the_end_is_still_seen(
    start: object,
    watched: tuple[ExitWatch, threading.Event],
    monkeypatch: pytest.MonkeyPatch,
    has_function: bool,
    start_is_known: bool,
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "not implemented")

    if has_function:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    watch, ended = watched
    family = start("import sys; sys.stdin.read(); sys.exit(3)")  # type: ignore[operator]  # the fixture's function
    started = (process_start(family.pid) or 0) if start_is_known else 0
    watch.add(family.pid, started)
    family.tell_parent()
    assert ended.wait(60)
    assert watch.exits()[family.pid, started].code == 3
    family.tell_parent()


STUBBORN = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
WITH_CHILD = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_whole_tree_is_ended_also_what_left_the_session_and_does_not_listen() -> None:
    with subprocess.Popen([sys.executable, "-c", WITH_CHILD], stdout=subprocess.PIPE, text=True) as root:
        assert root.stdout is not None
        child = psutil.Process(int(root.stdout.readline()))
        found = processes.tree([root.pid, root.pid, 2**22 + 5])
        assert {process.pid for process in found} == {root.pid, child.pid}
        processes.end(found, grace_s=0.3)
    assert root.returncode == -15
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


ELASTIC = b"""
E1130 04:56:01.123 77 torch/elastic/multiprocessing/api.py:984] failed (exitcode: -9) local_rank: 1 (pid: 123) of binary: py
[2]:
  time      : 2026-11-30_04:56:01
  rank      : 0 (local_rank: 0)
  exitcode  : 17 (pid: 122)
  traceback : Signal 9 (SIGKILL) received by PID 123
torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGSEGV
torch.multiprocessing.spawn.ProcessExitedException: process 4 terminated with exit code 5
process 5 terminated with signal SIGNONSENSE
W1130 04:56:01.2 77 torch/multiprocessing/spawn.py:165] Terminating process 125 via signal SIGTERM
W1130 04:56:01.2 77 torch/elastic/multiprocessing/api.py:1028] Sending process 123 closing signal SIGTERM
"""


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_codes_are_read_from_what_launchers_print(size: int) -> None:
    codes = ExitCodes()
    for begin in range(0, len(ELASTIC), size):
        codes.feed(ELASTIC[begin : begin + size])
    assert codes.by_pid == {123: -9, 122: 17}
    assert codes.by_local_rank == {3: -11, 4: 5}
    assert [codes.best(123, None), codes.best(125, None), codes.best(126, 4), codes.best(127, 9)] == [-9, -15, 5, None]


def test_output_without_lines_takes_no_memory_and_no_claim_is_endless() -> None:
    codes = ExitCodes()
    for _ in range(100):
        codes.feed(b"exitcode : 1 (pid: " + b"9" * 100_000)
    codes.feed(b"\nexitcode : 99999999999 (pid: 4)\nexitcode : 1 (pid: " + b"9" * 30 + b")\n")
    assert codes.by_pid == {}
    assert len(codes._rest) <= 4096


def test_the_status_of_a_process_is_not_that_of_another_with_its_number() -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        fields = stat_fields(child.pid)
        assert fields is not None
        started = int(fields[19])
        assert (zombie_code(child.pid, started), zombie_code(child.pid)) == (7, 7)
        assert zombie_code(child.pid, started + 1) is None
