from __future__ import annotations

import argparse
import io
import stat
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from desync.cli import watch as command
from desync.report.json_format import from_json
from desync.watch.reporter import Reporter
from desync.watch.status_line import Voice
from tests.unit.report import report_samples as samples


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    return Reporter(tmp_path, Voice(status_line=False), annotate=True)


def test_every_run_leaves_a_page_beside_its_report(reporter: Reporter, capsys: pytest.CaptureFixture[str]) -> None:
    sample = samples.healthy()

    report = reporter.write(sample.evidence, sample.diagnosis, sample.timing)
    reporter.close(report)

    page = reporter.path.with_name("report.html")
    assert "Nothing is wrong" in page.read_text(encoding="utf-8")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert str(page) in capsys.readouterr().err.splitlines()[-1]


class Nobody(io.StringIO):
    """Standard error after its reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_watch_goes_on_when_nobody_reads_what_it_says(reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Nobody())

    reporter.show(samples.uneven_inputs().report())

    assert reporter.path.with_name("report.html").exists()


def test_a_finding_is_annotated_once_and_nothing_is_where_nobody_asked(
    reporter: Reporter, capsys: pytest.CaptureFixture[str]
) -> None:
    report = samples.uneven_inputs().report()

    reporter.show(report)
    reporter.show(report)
    asked = capsys.readouterr().err
    reporter.show(samples.healthy().report())
    reporter.annotate = False
    reporter.show(replace(report, job=replace(report.job, attempt=1)))
    not_asked = capsys.readouterr().err

    assert [line[:8] for line in asked.splitlines() if line.startswith("::")] == ["::error "]
    assert "HANG" in not_asked
    assert "::" not in not_asked


def test_who_is_left_with_a_hung_job_is_told_how_to_go_on(reporter: Reporter, capsys: pytest.CaptureFixture[str]) -> None:
    report = samples.uneven_inputs().report()
    words = "the job is left as it is, Ctrl-C ends it; the report so far: "

    reporter.show(report)
    assert f"{words}{reporter.path.with_name('report.html')}" in capsys.readouterr().err

    over = replace(report, job=replace(report.job, attempt=1, ended="2025-11-30T12:03:04+00:00"))
    reporter.show(over)
    reporter.show(samples.exception().report())
    reporter.kill = True
    reporter.show(replace(report, job=replace(report.job, attempt=2)))
    assert words not in capsys.readouterr().err


def test_a_page_that_cannot_be_made_costs_nothing_else(reporter: Reporter, capsys: pytest.CaptureFixture[str]) -> None:
    sample = samples.uneven_inputs()

    with mock.patch("desync.report.html.render_html", side_effect=RuntimeError("no template")):
        report = reporter.write(sample.evidence, sample.diagnosis, sample.timing)
        reporter.show(report)
        reporter.close(report)

    said = capsys.readouterr().err
    assert "report.html cannot be written: no template" in said
    assert said.splitlines()[-1].endswith(str(reporter.path))
    assert from_json(reporter.path.read_text(encoding="utf-8")) == report


@pytest.mark.parametrize(
    ("arguments", "variables", "annotated"),
    [
        ([], {}, False),
        ([], {"CI": "true"}, True),
        ([], {"GITHUB_ACTIONS": "true"}, True),
        ([], {"CI": "false"}, False),
        (["--annotate"], {}, True),
        (["--no-annotate"], {"CI": "1"}, False),
    ],
)
def test_annotations_are_for_ci_unless_told_otherwise(
    arguments: list[str], variables: dict[str, str], annotated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CI", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)

    with mock.patch("desync.watch.session.watch", return_value=0) as started:
        command.run(parser.parse_args([*arguments, "true"]))

    assert started.call_args.args[0].annotate == annotated
