from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from desync.model import Divergence, Evidence, Frame, Group, OperationState, RankState
from desync.report.build import build_report
from desync.report.frames import cut_frames
from desync.report.json_format import from_json, to_json
from desync.report.model import Report, Timing
from desync.report.terminal import render
from tests.unit.report import report_samples as samples
from tests.unit.report.report_samples import GRADIENTS, PROJECT, Step, diagnosis, job, steps, trace

GOLD = Path(__file__).with_name("gold")
REWRITE = "DESYNC_REWRITE_GOLD"


def shown(report: Report, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    render(report, Console(file=file, width=width, color_system=None), base=PROJECT)
    file.flush()
    return raw.getvalue().decode(encoding)


def check_gold(name: str, text: str) -> None:
    """Compare with the kept rendering; after a wanted change run once with DESYNC_REWRITE_GOLD=1 and read the diff."""
    path = GOLD / f"{name}.txt"
    if os.environ.get(REWRITE):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_the_rendering_is_the_kept_one_also_from_report_json_alone(name: str) -> None:
    report = samples.SAMPLES[name]().report()

    text = shown(from_json(to_json(report)))

    assert text == shown(report)
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    check_gold(name, text)


def test_another_fault_is_named_under_the_verdict_and_what_follows_from_it_is_not() -> None:
    report = samples.two_faults().report()
    verdict, _, rest = shown(report).partition("\n  another fault   hang: uneven_inputs, rank 2")
    assert "what to change" in verdict
    assert " at train.py:" in rest.partition("Where they part")[0]
    assert "another fault" not in shown(samples.exception().report())
    many = replace(report, findings=(report.findings[0], *[report.findings[1]] * 5))
    assert "  another fault   2 more, see below\n" in shown(many)


def test_without_utf8_the_signs_are_ascii() -> None:
    text = shown(samples.rank_only_branch().report(), encoding="ascii")

    assert text.isascii()
    check_gold("ascii", text)


def test_colour_can_be_turned_off_and_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    report = samples.uneven_inputs().report()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")

    render(report, plain, base=PROJECT)
    render(report, coloured, base=PROJECT)

    assert isinstance(plain.file, io.StringIO)
    assert isinstance(coloured.file, io.StringIO)
    assert "\x1b[31m" not in plain.file.getvalue()
    assert "31m" in coloured.file.getvalue()
    assert "\x1b[1mall_reduce 17\x1b[0m of default_pg" in coloured.file.getvalue()
    assert re.search(r"\n  0-1,3  +\x1b\[32m✓\x1b", coloured.file.getvalue())
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.file.getvalue()) == shown(report)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(exclude_categories=[]), max_size=60), st.sampled_from(["utf-8", "ascii", "latin-1"]))
def test_whatever_a_job_calls_things_the_terminal_gets_only_printable_lines(name: str, encoding: str) -> None:
    with mock.patch.object(samples, "HOSTILE", name):
        report = samples.hostile().report()

    assert all(line.isprintable() for line in shown(report, encoding=encoding).split("\n"))


def test_markup_in_foreign_text_is_text() -> None:
    assert "[red]x[/red]" in shown(samples.hostile().report())


@pytest.mark.parametrize("width", [20, 40, 60, 132])
def test_other_widths(width: int) -> None:
    text = shown(samples.many_ranks().report(), width=width)

    assert all(len(line) <= max(width, 40) for line in text.splitlines())
    assert re.search(r"► 3 .*— absent", text)
    assert re.search(r"0-2,4-63 .*… waiting", text)


def test_many_ranks_that_all_differ_are_cut_to_the_culprits_and_the_most() -> None:
    """Forty ranks stand at forty different places of their sequences; the culprit is the last of them."""
    group = Group("default_pg", tuple(range(40)))
    calls = [replace(GRADIENTS, op=f"op_{rank}", bucket=None) for rank in range(40)]
    made = tuple(trace(rank, [Step(calls[rank], 1, done=None)]) for rank in range(40))
    states = [OperationState.WAITING] * 39 + [OperationState.MISMATCHED]
    standing = {rank: samples.at(made[rank], 1, state) for rank, state in enumerate(states)}
    finding = replace(
        samples.shape_mismatch().diagnosis.findings[0],
        culprit_ranks=(39,),
        divergence=Divergence(group, "collective", 1, "op_0", standing),
    )
    found = diagnosis([finding], dict.fromkeys(range(40), RankState.WAITING))

    text = shown(build_report(Evidence(job(40), made), found, Timing()))

    table = text.partition("Where they part")[2].partition("\n\n")[0]
    assert "► 39" in table
    assert table.count("… in op_") == 11
    assert "28 more in report.json" in table


def test_names_that_abbreviate_alike_are_spelt_out_where_they_differ() -> None:
    usual = replace(GRADIENTS, op="all_gather_into_tensor", bucket=None)
    other = replace(usual, op="all_gather")
    made = (trace(0, steps(usual, 1, pending=True)), trace(1, [*steps(usual, 1), Step(other, 2, done=None)]))
    standing = {
        0: samples.at(made[0], 2, OperationState.WAITING),
        1: samples.at(made[1], 2, OperationState.MISMATCHED),
    }
    finding = replace(
        samples.shape_mismatch().diagnosis.findings[0],
        culprit_ranks=(1,),
        divergence=Divergence(Group("default_pg", (0, 1)), "collective", 2, "all_gather_into_tensor", standing),
    )

    text = shown(build_report(Evidence(job(2), made), diagnosis([finding], {}), Timing()))

    assert "✓           │ … in all_gather_into_tensor" in text
    assert "✓           │ ≠ in all_gather\n" in text
    assert "all_gather  │\n" in text


def test_a_stack_without_users_frames_shows_its_three_innermost() -> None:
    native = tuple(Frame(f"f{number}", "libc.so.6", 0) for number in range(5))

    assert cut_frames(native) == native[:3]
    assert cut_frames(()) == ()
