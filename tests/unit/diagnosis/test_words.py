"""How things are put into words."""

from __future__ import annotations

import pytest

from desync.diagnosis import diagnose
from desync.diagnosis.words import MAX_MESSAGE, closed, raised
from desync.model import Failure

from .jobs import Op, job, trace
from .jobs import raised as raises


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("no such file", "ValueError: no such file"),
        ("no such file.\nsecond line", "ValueError: no such file"),
        ("and so on...", "ValueError: and so on..."),
        ("", "ValueError"),
        ("x" * 1000, "ValueError: " + "x" * (MAX_MESSAGE - 1) + "…"),
    ],
)
def test_an_exception_in_one_line(message: str, words: str) -> None:
    assert raised(Failure("builtins.ValueError", message)) == words


@pytest.mark.parametrize(("text", "sentence"), [("done", "done."), ("done.", "done."), ("done?", "done?")])
def test_a_sentence_ends_once(text: str, sentence: str) -> None:
    assert closed(text) == sentence


def test_a_loaders_worker_that_was_killed_is_a_matter_of_memory() -> None:
    mark = raises("DataLoader worker (pid 5567) is killed by signal: Killed.", 1, kind="RuntimeError")
    others = [trace(rank, [Op(), Op(done=False)], world=3) for rank in (0, 2)]
    (finding,) = diagnose(job(*others, trace(1, [Op()], world=3, marks=(mark,)))).findings
    assert finding.culprit_ranks == (1,)
    assert "Killed; ranks 0,2" in finding.summary
    assert "host memory" in finding.advice
