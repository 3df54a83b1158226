import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from desync.model import Frame
from desync.stacks import pyspy

STUCK = """
import threading, time
def hold():
    print("ready", flush=True)
    time.sleep(600)
def outer():
    hold()
threading.Thread(target=time.sleep, args=(600,), name="idler", daemon=True).start()
outer()
"""


@contextmanager
def stuck(program: str = STUCK) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def functions(stacks: pyspy.TakenStacks, rank: int) -> list[str]:
    main = next(stack for stack in stacks.stacks if stack.rank == rank).threads[0]
    assert main.thread == "MainThread"
    return [frame.function for frame in main.frames]


def test_python_frames_of_several_ranks_innermost_first_and_one_that_is_gone_becomes_a_note() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with stuck() as one, stuck() as other:
        taken = pyspy.take({3: other.pid, 0: one.pid, 7: gone.pid}, limit_s=20, native=False)
    assert [stack.rank for stack in taken.stacks] == [0, 3]
    for rank in (0, 3):
        assert functions(taken, rank) == ["hold", "outer", "<module>"]
    assert {stack.thread for stack in taken.stacks[0].threads} == {"MainThread", "idler"}
    assert taken.stacks[0].source == "py-spy"
    assert taken.notes == ("no stack of rank 7: its process was gone",)


def test_native_frames_join_the_python_ones_and_show_no_bare_addresses() -> None:
    with stuck() as process:
        taken = pyspy.take({0: process.pid}, limit_s=60, native=True)
    names = functions(taken, 0)
    assert [name for name in names if name in ("hold", "outer", "<module>")] == ["hold", "outer", "<module>"]
    assert len(names) > 3
    assert not any(name.startswith("0x") for name in names)


def test_without_time_there_are_no_stacks_but_a_note_and_the_process_goes_on() -> None:
    with stuck() as process:
        taken = pyspy.take({0: process.pid, 1: process.pid}, limit_s=0.0, native=True)
        assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
    assert taken.stacks == ()
    assert len(taken.notes) == 1
    assert taken.notes[0].startswith("no stack of ranks 0, 1: ")


def test_a_late_pyspy_is_ended_and_a_process_that_it_left_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text(f"#!{sys.executable}\nimport os, sys, time\nos.kill(int(sys.argv[3]), 19)\ntime.sleep(600)\n")
    slow.chmod(0o700)
    monkeypatch.setattr(pyspy, "find_pyspy", lambda: str(slow))
    with stuck() as process:
        taken = pyspy.take({0: process.pid}, limit_s=1.0, native=False)
        deadline = time.monotonic() + 20
        while psutil.Process(process.pid).status() == psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
    assert taken.stacks == ()
    assert "not done" in taken.notes[0]


def test_a_stopped_process_is_read_and_stays_stopped() -> None:
    with stuck() as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        taken = pyspy.take({0: process.pid}, limit_s=20, native=False)
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    assert functions(taken, 0) == ["hold", "outer", "<module>"]


def test_without_a_thread_for_pyspy_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pyspy, "find_pyspy", lambda: "py-spy")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    taken = pyspy.take({0: 1, 1: 2}, limit_s=1, native=True)
    assert taken == pyspy.TakenStacks(notes=("no stack of ranks 0, 1: py-spy cannot be started (can't start new thread)",))


def test_a_process_that_ends_while_it_is_let_go_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(pyspy, "_is_stopped", lambda pid: True)
    pyspy._let_go(gone.pid)


def test_without_pyspy_a_note_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "find_pyspy", lambda: None)
    taken = pyspy.take({0: 1}, limit_s=1, native=False)
    assert taken.stacks == ()
    assert "pip install py-spy" in taken.notes[0]


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"frames": []}',
        b"[1, null, [], {}]",
        json.dumps([{"thread_name": 3, "frames": "no"}]).encode(),
        json.dumps([{"thread_name": "MainThread", "frames": [{"name": 1, "filename": "f", "line": 2}]}]).encode(),
    ],
)
def test_output_that_is_none_gives_no_threads(output: bytes) -> None:
    assert pyspy.parse(output) == ()


def test_endless_stacks_are_cut() -> None:
    frame = {"name": "f" * 300, "filename": "g", "line": 1}
    raw = [{"thread_name": "t" * 300, "frames": [frame] * length} for length in (600, *[1] * 300)]
    threads = pyspy.parse(json.dumps(raw).encode())
    assert len(threads) == pyspy.MAX_THREADS
    assert len(threads[0].frames) == pyspy.MAX_FRAMES
    assert max(len(threads[0].thread), len(threads[0].frames[0].function)) == pyspy.MAX_NAME
    assert isinstance(threads[0].frames[0], Frame)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("<module>", "<module>"),
        ("wrapper.<locals>.<lambda>", "wrapper.<locals>.<lambda>"),
        ("c10d::Work::wait", "c10d::Work::wait"),
        ("std::pair<int, std::vector<int> >::first(int)", "std::pair<…>::first(int)"),
        ("f<" * 5000, "f<…>"),
    ],
)
def test_template_arguments_are_left_out_of_names(name: str, short: str) -> None:
    assert pyspy.short_name(name) == short
