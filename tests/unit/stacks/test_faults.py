import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from desync.stacks import faults

CRASH = """
import faulthandler, os, sys, threading, time
faulthandler.enable(file=open(sys.argv[1], "w"), all_threads=True)
started = threading.Event()
def idle():
    started.set()
    time.sleep(600)
threading.Thread(target=idle, daemon=True).start()
started.wait()
def broken():
    os.abort()
def outer():
    broken()
outer()
"""


def crash(folder: Path) -> int:
    file = folder / "text"
    with subprocess.Popen([sys.executable, "-c", CRASH, str(file)], cwd=folder) as process:
        process.wait()
    file.rename(folder / f"a0.node.{process.pid}.fault")
    return process.pid


def test_what_python_writes_at_an_abort(tmp_path: Path) -> None:
    pid = crash(tmp_path)
    left = faults.read_folder(tmp_path, 0, {("node", pid): 5})
    assert left.fatal == {5: "Aborted"}
    (stacks,) = left.stacks
    assert (stacks.rank, stacks.source) == (5, "faulthandler")
    main, other = stacks.threads
    assert main.thread == "MainThread"
    assert [frame.function for frame in main.frames] == ["broken", "outer", "<module>"]
    assert "idle" in [frame.function for frame in other.frames]


def test_files_of_other_attempts_other_processes_and_no_files_are_left_alone(tmp_path: Path) -> None:
    pid = crash(tmp_path)
    (tmp_path / "a0.node.99.fault").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "a0.node.98.fault")
    assert faults.read_folder(tmp_path, 1, {("node", pid): 0}).stacks == ()
    assert (
        faults.read_folder(tmp_path, 0, {("node", 99): 0, ("node", 98): 1, ("node", 97): 2, ("elsewhere", pid): 3}).stacks == ()
    )
    assert faults.read_folder(tmp_path / "none", 0, {("node", pid): 0}).stacks == ()


def test_only_the_first_dump_counts_and_a_cut_one_gives_what_is_there() -> None:
    dump = 'Thread 0x00ab (most recent call first):\n  File "a.py", line 3 in inner\n  File "a.py", line 9 in <module>\n'
    later = dump.replace("inner", "teardown")
    fault = faults.parse(dump + "\nFatal Python error: Segmentation fault\n\n" + later)
    assert fault.fatal is None
    assert [frame.function for frame in fault.threads[0].frames] == ["inner", "<module>"]
    assert faults.parse(dump + later) == faults.parse(dump)
    cut = faults.parse(dump[: dump.index("line 9")])
    assert [frame.function for frame in cut.threads[0].frames] == ["inner"]


def test_names_of_threads_and_lines_that_newer_pythons_write() -> None:
    text = 'Current thread 0x1f [worker 3] (most recent call first):\n  File "a.py", line ??? in f\n  <no Python frame>\n'
    (stack,) = faults.parse(text).threads
    assert stack.thread == "worker 3"
    assert stack.frames[0].line == 0


@given(
    st.text()
    | st.lists(st.sampled_from(["Thread 0x1 (most recent call first):", '  File "f", line 1 in g', "x"])).map("\n".join)
)
def test_any_text_is_read_without_error_and_within_bounds(text: str) -> None:
    fault = faults.parse(text)
    assert len(fault.threads) <= faults.MAX_THREADS
    assert all(0 < len(stack.frames) <= faults.MAX_FRAMES for stack in fault.threads)
