from __future__ import annotations

from pathlib import Path

import pytest

from desync.model import Frame
from desync.watch.threads import waits_for

LIBRARY = "/usr/lib/python3.11"


def frames(*inside: tuple[str, str]) -> tuple[Frame, ...]:
    return (*(Frame(function, f"{LIBRARY}/{file}", 9) for file, function in inside), Frame("load", "train.py", 31))


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ([("threading.py", "Condition.wait"), ("queue.py", "Queue.put")], "waits for room in a full queue"),
        ([("threading.py", "wait"), ("queue.py", "get")], "waits for something in an empty queue"),
        ([("threading.py", "_wait_for_tstate_lock"), ("threading.py", "Thread.join")], "waits for another thread"),
        ([("threading.py", "wait"), ("concurrent/futures/_base.py", "result")], "waits for the result of a future"),
        ([("threading.py", "Event.wait")], "waits for another thread or a lock"),
    ],
)
def test_the_stack_tells_more_than_the_kernel(tmp_path: Path, inside: list[tuple[str, str]], words: str) -> None:
    place = tmp_path / "7" / "wchan"
    place.parent.mkdir()
    place.write_text("futex_do_wait")
    assert waits_for(7, "sleeping", frames(*inside), tmp_path) == words
    assert waits_for(7, "sleeping", frames(), tmp_path) == "waits for a lock or another thread"


@pytest.mark.parametrize(
    ("kernel", "words"),
    [("hrtimer_nanosleep", "sleeps"), ("anon_pipe_read", "waits for a pipe"), ("0", None), ("something_new", None)],
)
def test_the_kernel_tells_what_no_frame_does(tmp_path: Path, kernel: str, words: str | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "wchan").write_text(kernel)
    assert waits_for(7, "sleeping", frames(), tmp_path) == words


def test_a_process_that_is_gone_waits_for_nothing(tmp_path: Path) -> None:
    assert waits_for(7, "sleeping", (), tmp_path) is None
