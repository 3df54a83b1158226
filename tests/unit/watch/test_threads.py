from __future__ import annotations

import os
from pathlib import Path

import pytest

from desync.model import Frame
from desync.watch.threads import Clock, has_process_group, main_clock, share, uses_gpu, waits_for

DATALOADER = "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py"


def proc(folder: Path, **files: str) -> Path:
    """A /proc with one process, 7."""
    for name, text in files.items():
        path = folder / "7" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_clock_of_a_thread_that_runs_goes_on() -> None:
    before = main_clock(os.getpid())
    assert before is not None
    assert sum(range(300_000)) > 0
    after = main_clock(os.getpid())
    assert after is not None
    assert after.ran_ns >= before.ran_ns
    assert after.turns >= before.turns


def test_the_share_counts_time_in_the_queue_as_well(tmp_path: Path) -> None:
    clock = main_clock(7, proc(tmp_path, task__7__schedstat="100 50 3\n"))
    assert clock == Clock(100, 50, 3)
    assert share(Clock(0, 0, 1), clock, 300) == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["", "1 2", "a b c", "1 2 3 4"])
def test_a_kernel_without_clocks_has_none(text: str, tmp_path: Path) -> None:
    assert main_clock(7, proc(tmp_path, task__7__schedstat=text)) is None
    assert main_clock(8, tmp_path) is None


@pytest.mark.parametrize(
    ("state", "frames", "wchan", "words"),
    [
        ("sleeping", (), "hrtimer_nanosleep", "sleeps"),
        ("sleeping", (), "futex_do_wait", "waits for a lock or another thread"),
        ("sleeping", (), "flock_lock_inode_wait", "waits for a lock on a file"),
        ("sleeping", (Frame("_try_get_data", DATALOADER, 1),), "do_poll", "waits for its data loader"),
        ("sleeping", (Frame("wait", "threading.py", 1),), "futex_do_wait", "waits for another thread or a lock"),
        ("sleeping", (Frame("run", "/job/mythreading.py", 1),), "0", None),
        ("stopped", (Frame("wait", "threading.py", 1),), "", "is stopped: somebody sent SIGSTOP, or a debugger holds it"),
        ("disk-sleep", (), "", "waits for a disk or a network file system"),
    ],
)
def test_what_a_thread_waits_for(state: str, frames: tuple[Frame, ...], wchan: str, words: str | None, tmp_path: Path) -> None:
    assert waits_for(7, state, frames, proc(tmp_path, wchan=wchan)) == words


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert waits_for(7, None, (), tmp_path) is None
    assert not has_process_group(7, tmp_path)
    assert not uses_gpu(7, tmp_path)


def test_a_process_group_is_told_by_its_threads_and_a_gpu_by_its_device(tmp_path: Path) -> None:
    root = proc(tmp_path, task__7__comm="python\n", maps="7f00 r-xp /usr/lib/libcuda.so.1\n")
    assert not has_process_group(7, root)
    assert not uses_gpu(7, root)
    proc(tmp_path, task__9__comm="pt_nccl_watchdg\n", maps="7f00 rw-s /dev/nvidiactl\n")
    assert has_process_group(7, root)
    assert uses_gpu(7, root)
