"""What is kept of an exception's message: never more than costs nothing, as long as the job handles it."""

from __future__ import annotations

from typing import NoReturn

import pytest

from desync.recorder.exceptions import MAX_MESSAGE, _message


class HeavyError(Exception):
    """One whose text must not be asked for."""

    def __str__(self) -> NoReturn:
        raise AssertionError("its __str__ was called")


class Unprintable:
    """An argument that must not be printed."""

    def __repr__(self) -> NoReturn:
        raise AssertionError("its __repr__ was called")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("bad batch"), "bad batch"),
        (ValueError("bad batch", Unprintable()), "bad batch, <Unprintable>"),
        (ValueError("bad batch", 10**5000), "bad batch, <int>"),
        (HeavyError("bad batch", 3), "bad batch, 3"),
        (KeyError("loss"), "'loss'"),
        (FileNotFoundError(2, "No such file or directory", "part-7"), "[Errno 2] No such file or directory: 'part-7'"),
        (RuntimeError("x" * 2 * MAX_MESSAGE), "x" * MAX_MESSAGE),
        (ValueError(), ""),
    ],
)
def test_of_an_exception_that_the_job_handles_only_plain_words_are_taken(error: BaseException, message: str) -> None:
    assert _message(error, uncaught=False) == message


def test_an_exception_that_ends_the_program_speaks_for_itself() -> None:
    class ToldError(Exception):
        def __str__(self) -> str:
            return "told by itself"

    assert _message(ToldError(3), uncaught=True) == "told by itself"
    assert _message(HeavyError(), uncaught=True) == "(its message cannot be had: AssertionError)"
