"""Stacks at a kill: whatever the job has installed for signals stays in force.  Real processes, without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from desync.journal.reader import JournalReader
from tests.conftest import ROOT, run_to_end

BEGIN = """
import faulthandler, os, resource, signal, sys

def begin():
    from desync.recorder import exits, session
    owner = session.begin(0, 1)
    exits.install(owner)

def child(function):
    pid = os.fork()
    if pid == 0:
        function()
        os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def kill(number=signal.SIGTERM):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)
"""
ENDED = -15


def run(folder: Path, program: str) -> tuple[int, str]:
    """Status and output of a program that calls ``begin`` somewhere."""
    (folder / "program.py").write_text(BEGIN + program)
    env = {"DESYNC_RUN_DIR": str(folder / "run"), "PYTHONPATH": str(ROOT)}
    job = run_to_end([sys.executable, folder / "program.py"], env=env, cwd=folder)
    return job.status, job.stdout


def stacks(folder: Path) -> dict[str, str]:
    return {path.name.split(".")[-2]: path.read_text() for path in (folder / "run" / "stacks").iterdir()}


def notes(folder: Path) -> tuple[str, ...]:
    found: list[str] = []
    for path in (folder / "run" / "journals").iterdir():
        reader = JournalReader(str(path))
        trace = reader.trace()
        assert trace is not None
        found += trace.notes
        reader.close()
    return tuple(found)


def test_a_handler_that_was_installed_since_stays_in_force_in_children(tmp_path: Path) -> None:
    program = """
begin()
signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
print(child(kill))
"""
    assert run(tmp_path, program) == (0, "7\n")


def test_a_file_that_the_job_has_given_since_gets_the_stacks_of_a_childs_crash(tmp_path: Path) -> None:
    program = """
begin()
faulthandler.enable(open("own.txt", "w"))
print(child(lambda: kill(signal.SIGSEGV)))
"""
    assert run(tmp_path, program) == (0, "-11\n")
    assert "program.py" in (tmp_path / "own.txt").read_text()
    assert set(stacks(tmp_path).values()) == {""}


def test_what_the_job_had_registered_before_is_not_replaced(tmp_path: Path) -> None:
    program = """
faulthandler.register(signal.SIGTERM, open("own.txt", "w"))
begin()
kill()
print("alive")
"""
    assert run(tmp_path, program) == (0, "alive\n")
    assert "program.py" in (tmp_path / "own.txt").read_text()
    (note,) = notes(tmp_path)
    assert note.startswith("the job handles or ignores SIGTERM")


def test_stacks_are_not_written_into_a_file_that_took_the_descriptors_place(tmp_path: Path) -> None:
    program = """
begin()
os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
file = open("checkpoint.bin", "wb")
file.write(b"weights")
file.flush()
child(kill)
kill()
"""
    assert run(tmp_path, program) == (ENDED, "")
    assert (tmp_path / "checkpoint.bin").read_bytes() == b"weights"


def test_a_ranks_stacks_are_kept_and_its_childrens_are_not(tmp_path: Path) -> None:
    program = """
begin()
def of_the_child():
    kill()
print(child(of_the_child), child(lambda: kill(signal.SIGSEGV)), flush=True)
def of_the_rank():
    kill()
of_the_rank()
"""
    assert run(tmp_path, program) == (ENDED, "-15 -11\n")
    (text,) = stacks(tmp_path).values()
    assert "of_the_rank" in text
    assert "of_the_child" not in text
    assert notes(tmp_path) == ()


@pytest.mark.parametrize("number", ["SIGTERM", "SIGSEGV"])
def test_a_child_that_becomes_a_rank_has_a_file_of_its_own(tmp_path: Path, number: str) -> None:
    program = f"""
begin()
def becomes_a_rank():
    begin()
    kill(signal.{number})
print(child(becomes_a_rank))
"""
    assert run(tmp_path, program)[0] == 0
    own, childs = sorted(stacks(tmp_path).values())
    assert own == ""
    assert "becomes_a_rank" in childs
    assert notes(tmp_path) == ()


def test_where_few_descriptors_are_allowed_there_is_one_all_the_same(tmp_path: Path) -> None:
    program = """
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
begin()
kill()
"""
    assert run(tmp_path, program) == (ENDED, "")
    (text,) = stacks(tmp_path).values()
    assert "in kill" in text
    assert notes(tmp_path) == ()


IGNORES_IN_CHILDREN = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)"


def test_a_sigterm_that_the_job_ignores_is_ignored_by_the_programs_that_it_starts(tmp_path: Path) -> None:
    program = f"""
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
begin()
kill()
print(subprocess.run([sys.executable, "-c", {IGNORES_IN_CHILDREN!r}], capture_output=True, text=True).stdout.strip())
"""
    assert run(tmp_path, program) == (0, "True\n")
    assert len(notes(tmp_path)) == 1


def test_a_handler_of_fatal_signals_outside_of_python_stays(tmp_path: Path) -> None:
    """As that of a runtime that repairs faults of memory; here libc's ``_exit`` is called with the signal's number."""
    program = """
import ctypes
libc = ctypes.CDLL(None)
libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.signal(int(signal.SIGSEGV), ctypes.cast(libc._exit, ctypes.c_void_p))
begin()
kill(signal.SIGSEGV)
"""
    assert run(tmp_path, program) == (11, "")
    assert [note for note in notes(tmp_path) if note.startswith("the job handles fatal signals itself")]
