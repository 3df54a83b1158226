from __future__ import annotations

from pathlib import Path

import pytest

from desync.cli.main import main
from fault_scenarios import runner
from fault_scenarios.catalogue import SCENARIOS, Scenario
from fault_scenarios.runner import Check, Outcome

Runs = list[tuple[str, Path]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Every run that is asked for; none is really made.  The second run of ``killed`` gets the wrong verdict."""
    made: Runs = []

    def fake(scenario: Scenario, run_dir: Path, show: object = None) -> Outcome:
        made.append((scenario.name, run_dir))
        if scenario.name == "stuck_loader":
            return Outcome(scenario, run_dir, 1.0, (), problem="not over after 120 s")
        got = "hang" if run_dir.name == "killed-2" else "crash"
        return Outcome(scenario, run_dir, 1.0, (Check("status", "crash", got), Check("exit status", "1", "1")))

    monkeypatch.setattr(runner, "run", fake)
    return made


def test_list_shows_every_scenario(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["scenarios", "list"]) == 0
    shown = capsys.readouterr().out
    for scenario in SCENARIOS:
        assert scenario.name in shown
        assert scenario.cause.value in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["unevn_data"], "there is no scenario 'unevn_data'; did you mean 'uneven_data'?"),
        (["qqqqqq"], "see 'desync scenarios list'"),
        ([], "nothing to run"),
        (["killed", "--all"], "both names and --all"),
        (["killed", "--repeat", "0"], "'0' is no number from 1"),
    ],
)
def test_wrong_use(arguments: list[str], words: str, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "run", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert runs == []


def test_one_run_shows_expected_and_got(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "run", "killed", "--run-dir", str(tmp_path / "here")]) == 0
    assert runs == [("killed", tmp_path / "here")]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("scenario killed: as expected (1.0 s, ")
    assert [line.split() for line in shown[1:]] == [
        ["expected", "got"],
        ["ok", "status", "crash", "crash"],
        ["ok", "exit", "status", "1", "1"],
    ]


def test_repeated_runs_have_folders_of_their_own(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "run", "killed", "--repeat", "3", "--run-dir", str(tmp_path)]) == 1
    assert runs == [("killed", tmp_path / f"killed-{number}") for number in (1, 2, 3)]
    shown = capsys.readouterr().out
    assert "scenario killed: NOT as expected" in shown
    assert [line.split() for line in shown.splitlines() if "!!" in line] == [["!!", "status", "crash", "hang"]]
    assert shown.endswith("2 of 3 runs as expected\n")


def test_a_run_without_a_verdict_says_why(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "run", "stuck_loader"]) == 1
    shown = capsys.readouterr().out
    assert "scenario stuck_loader: NOT as expected" in shown
    assert "  not over after 120 s" in shown
    (made,) = runs
    assert made[1].parent == Path("desync-runs")
    assert made[1].name.endswith("-stuck_loader")


def test_all_runs_all(runs: Runs, tmp_path: Path) -> None:
    assert main(["scenarios", "run", "--all", "--run-dir", str(tmp_path)]) == 1
    assert runs == [(scenario.name, tmp_path / scenario.name) for scenario in SCENARIOS]
