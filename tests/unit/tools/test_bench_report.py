"""The measured report is one in which there is something to render."""

from __future__ import annotations

import sys

import pytest

from desync.diagnosis import diagnose
from desync.report.build import build_report
from desync.report.model import Timing
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from bench_report import job, measured, table


def test_what_is_measured_has_a_verdict_a_picture_stacks_and_buckets() -> None:
    evidence = job(16, 160)
    report = build_report(evidence, diagnose(evidence), Timing())

    assert report.verdict.culprit_ranks == (5,)
    assert report.window is not None
    assert len(report.waits) > 1
    assert report.lateness is not None
    assert len(report.stacks) >= 5
    assert [bucket.count for bucket in report.ddp[0].buckets] == [3, 3, 3]


def test_all_is_the_sum_of_what_a_run_writes() -> None:
    took, sizes = measured(job(8, 80), 2)

    parts = ("report", "JSON", "HTML", "terminal", "Markdown")
    assert took["all"] == [pytest.approx(sum(took[name][index] for name in parts)) for index in range(2)]
    assert all(sizes[name] > 1000 for name in ("JSON", "HTML", "timeline"))
    assert sizes["HTML"] < 2_000_000


def test_the_table_has_a_row_for_each_size() -> None:
    head, line, *rows = table([8, 16], 80, 1).splitlines()

    assert [row.split()[1] for row in rows] == ["8", "16"]
    assert len({len(row.split("|")) for row in (head, line, *rows)}) == 1
