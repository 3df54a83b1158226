from __future__ import annotations

import argparse
import stat
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from desync.cli import report as command
from desync.errors import DesyncError, ReportError, RunDirectoryError, UsageError
from desync.report.json_format import from_json, write_report
from tests.unit.report import report_samples as samples


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    made = tmp_path / "desync-runs" / "1-train"
    made.mkdir(parents=True)
    write_report(samples.uneven_inputs().report(), made / "report.json")
    (made.parent / "latest").symlink_to(made.name)
    return made


def call(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


def test_shows_a_named_run_and_the_newest(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_dir.parent.parent)

    assert call() == 0
    newest = capsys.readouterr().out
    assert call(run_dir) == 0
    named = capsys.readouterr().out
    assert call(run_dir / "report.json") == 0

    assert newest == named == capsys.readouterr().out
    assert named.startswith("HANG · uneven_inputs · rank 2")


def test_json_is_the_report(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(run_dir, "--format", "json") == 0

    assert from_json(capsys.readouterr().out) == samples.uneven_inputs().report()


@pytest.mark.parametrize(
    ("chosen", "begins"),
    [
        ("html", "<!DOCTYPE html>"),
        ("markdown", "**HANG** · `uneven_inputs` · rank 2"),
        ("ddp", "No DistributedDataParallel module was recorded."),
    ],
)
def test_other_formats(chosen: str, begins: str, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(run_dir, "--format", chosen) == 0

    assert capsys.readouterr().out.startswith(begins)


def test_markdown_is_private_unless_asked_in_full(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = samples.killed().report()
    write_report(report, run_dir / "report.json")

    call(run_dir, "--format", "markdown")
    private = capsys.readouterr().out
    call(run_dir, "--format", "markdown", "--full")

    assert "gpu-2" not in private
    assert "gpu-2" in capsys.readouterr().out


def test_the_timeline_needs_the_journals(run_dir: Path) -> None:
    with pytest.raises(ReportError, match="needs the journals"):
        call(run_dir, "--format", "timeline")


def test_open_makes_the_page_and_shows_it(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "journals").mkdir()
    page = run_dir / "report.html"
    page.write_text("old")

    with mock.patch("webbrowser.open", return_value=True) as browser:
        assert call(run_dir, "--open") == 0
    with mock.patch("webbrowser.open", return_value=False), pytest.raises(UsageError, match=r"no browser.*report\.html"):
        call(run_dir, "--open")

    browser.assert_called_once_with(page.resolve().as_uri())
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert capsys.readouterr().out == f"{page.resolve()}\n"


def test_open_leaves_a_file_of_the_users_alone(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "report.json"
    copy.write_bytes((run_dir / "report.json").read_bytes())
    (tmp_path / "report.html").write_text("mine")

    with pytest.raises(UsageError, match="exists already"):
        call(copy, "--open")

    assert (tmp_path / "report.html").read_text() == "mine"


def test_check_tells_a_finding_from_none(run_dir: Path, tmp_path: Path) -> None:
    write_report(samples.healthy().report(), tmp_path / "report.json")

    assert call(run_dir, "--check") == 1
    assert call(tmp_path, "--check") == 0


def test_output_overwrites_nothing_unasked(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.txt"
    assert call(run_dir, "-o", out) == 0
    first = out.read_text()
    with pytest.raises(UsageError, match=r"exists already.*--force"):
        call(run_dir, "-o", out, "--format", "json")
    assert out.read_text() == first
    assert call(run_dir, "-o", out, "--format", "json", "--force") == 0

    assert first.startswith("HANG · uneven_inputs")
    assert "\x1b" not in first
    assert out.read_text().startswith("{")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert capsys.readouterr().out == ""


def test_wrong_use_is_one_line_with_a_remedy(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = tmp_path / "unfinished"
    (unfinished / "journals").mkdir(parents=True)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "report.json").write_bytes(b"\xff\xfe")
    monkeypatch.chdir(damaged)
    wrong: list[tuple[tuple[str | Path, ...], type[DesyncError], str]] = [
        ((), RunDirectoryError, "no run here"),
        ((tmp_path / "gone",), RunDirectoryError, "there is no"),
        ((tmp_path,), RunDirectoryError, "is no run directory"),
        ((unfinished,), RunDirectoryError, "has no report.json"),
        ((damaged,), ReportError, "damaged.*no JSON"),
        ((run_dir, "-o", tmp_path / "gone" / "x"), UsageError, "cannot write"),
    ]
    for arguments, kind, said in wrong:
        with pytest.raises(kind, match=said) as caught:
            call(*arguments)
        assert caught.value.exit_status == 2
        assert "\n" not in str(caught.value)


def test_neither_torch_nor_rich_is_imported_before_it_is_needed(run_dir: Path) -> None:
    program = (
        "import sys, desync.cli.report as r, argparse\n"
        "p = argparse.ArgumentParser(); r.add_arguments(p)\n"
        "assert not {'rich', 'torch', 'psutil'} & set(sys.modules)\n"
        f"r.run(p.parse_args([{str(run_dir)!r}]))\n"
        "assert not {'torch', 'psutil'} & set(sys.modules)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
