from __future__ import annotations

import json
import pickle
from pathlib import Path

import jsonschema
import pytest

from desync.cli import main as cli
from tests.unit.evidence import dumps as made
from tests.unit.evidence.test_flight_recorder import waiting

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    """The dumps of four ranks, one of which never came."""
    return made.write(tmp_path / "dumps", {**waiting([0, 1, 3]), 2: made.dump(made.steps(4))})


def test_it_shows_a_report_and_writes_the_same_json_as_every_source(hung: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(hung)]) == 0
    assert "HANG · stalled_rank · rank 2" in capsys.readouterr().out
    assert cli.main(["explain", str(hung), "--format", "json", "--check"]) == 1
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8")))
    assert report["verdict"]["culprit_ranks"] == [2]
    assert any("a dump holds no root" in note for note in report["notes"])


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_other_renderings_work_from_dumps_too(hung: Path, tmp_path: Path, form: str) -> None:
    target = tmp_path / "report"
    assert cli.main(["explain", str(hung), "--format", form, "-o", str(target)]) == 0
    assert "stalled_rank" in target.read_text(encoding="utf-8")
    assert cli.main(["explain", str(hung), "--format", form, "-o", str(target)]) == 2  # nothing is overwritten unasked


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: PATH"),
        (["/no/such/place"], "there is no '/no/such/place'; name dumps, logs, folders or archives"),
        (["{empty}"], "nothing there can be read"),
        (["{hung}", "--format", "timeline"], "a timeline needs journals"),
    ],
)
def test_wrong_use_is_one_line(
    argv: list[str], words: str, hung: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert cli.main(["explain", *(part.format(empty=empty, hung=hung) for part in argv)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_a_healthy_log_and_one_that_says_nothing_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("world_size=2\nstep 1\ntraining complete: 12 steps\n")
    assert cli.main(["explain", str(log)]) == 0
    assert "Nothing in the log describes a fault" in " ".join(capsys.readouterr().out.split())
    log.write_text("world_size=2\nstep 1\n")
    assert cli.main(["explain", str(log)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "nothing says that the job came to its end" in shown
    assert "TORCH_FR_BUFFER_SIZE" in shown


def test_switches_are_named_so_that_redaction_leaves_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text("world_size=2\nstep 1\n")
    assert cli.main(["explain", str(tmp_path), "--format", "markdown"]) == 0
    shown = capsys.readouterr().out
    assert "TORCH_FR_BUFFER_SIZE to 2000" in shown
    assert "***" not in shown.replace("\\", "")


def test_what_foreign_files_say_cannot_reach_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nasty = "\x1b[2J\x1b]0;gone\x07[bold red]x[/]\u202e"
    (tmp_path / "train.log").write_text(f"[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: {nasty}\n")
    for rank, content in {**waiting([0, 1, 3]), 2: made.dump(made.steps(4))}.items():
        for each in content["entries"]:
            each["process_group"] = ("0", nasty)
            each["frames"] = [{"name": nasty, "filename": f"/job/{nasty}.py", "line": 1}]
        (tmp_path / f"dump_{rank}{nasty[:4]}").write_bytes(pickle.dumps(content, protocol=2))
    assert cli.main(["explain", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown


def test_a_folder_of_journals_without_a_run_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journals").mkdir()
    assert cli.main(["explain", str(tmp_path)]) == 0
    assert "UNKNOWN" in capsys.readouterr().out
