from __future__ import annotations

from dataclasses import replace
from unittest import mock

from desync.report.annotation import annotation
from tests.unit.report import report_samples as samples
from tests.unit.report.report_samples import PROJECT


def test_it_stands_at_the_culprits_line_with_what_to_change() -> None:
    assert annotation(samples.uneven_inputs().report(), PROJECT) == (
        "::error file=train.py,line=84,title=desync%3A hang (uneven_inputs)::"
        "Rank 2's data ended after 7 batches while the other ranks went on to batch 8.%0A"
        "Give every rank the same number of batches: DistributedSampler with drop_last=True, or wrap the loop in model.join()."
    )


def test_a_line_outside_the_checkout_is_left_out_and_a_caller_inside_is_taken() -> None:
    raised = samples.exception().report()
    outside = annotation(raised, "/elsewhere")
    inside = annotation(raised, PROJECT)

    assert outside is not None
    assert outside.startswith("::error title=")
    assert inside is not None
    assert inside.startswith("::error file=data.py,line=31,")


def test_nothing_to_say_is_nothing() -> None:
    assert annotation(samples.healthy().report()) is None


def test_foreign_text_makes_no_other_command() -> None:
    with mock.patch.object(samples, "HOSTILE", "a%0A::stop\r\n::set-output name=x::y,z:1"):
        report = samples.hostile().report()

    line = annotation(report, PROJECT)

    assert line is not None
    assert "\n" not in line
    assert "\r" not in line
    assert line.count("::error") == 1
    assert "a%250A" in line
    assert annotation(replace(report, verdict=replace(report.verdict, places=())), PROJECT) is not None
