"""Handles of operations: which of them nobody holds any more."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from desync.recorder.completion import _Handles


class Handle:
    """Stands for torch's."""


def handles() -> tuple[_Handles, list[int]]:
    """A table without torch's wait, and the serial numbers of the operations that it lets go of."""
    gone: list[int] = []
    made = object.__new__(_Handles)
    made._session = SimpleNamespace(writer=SimpleNamespace(completion_unknown=gone.append))  # type: ignore[assignment]
    made._kept = {}
    return made, gone


def test_a_handle_that_nobody_holds_is_let_go_of_at_the_threads_next_one() -> None:
    made, gone = handles()
    made.keep(Handle(), 1)
    held = Handle()
    made.keep(held, 2)
    made.keep(Handle(), 3)
    made.keep(Handle(), 4)
    assert 1 in gone
    assert 2 not in gone


def test_a_handle_of_another_thread_may_be_on_its_way_to_its_caller() -> None:
    made, gone = handles()
    other = threading.Thread(target=lambda: made.keep(Handle(), 1))
    other.start()
    other.join()
    held: list[Any] = [Handle() for _ in range(3)]
    for serial, each in enumerate(held, 2):
        made.keep(each, serial)
    assert gone == []
