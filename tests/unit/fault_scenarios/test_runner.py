from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from desync.model import Cause, Certainty, Frame, OperationState, RankState, Status
from desync.report.json_format import to_json
from desync.report.model import (
    DivergenceEntry,
    ExceptionEntry,
    FindingEntry,
    JobEntry,
    MergedStack,
    ProgressEntry,
    RankAtDivergence,
    RankEntry,
    Report,
    TimingEntry,
    Verdict,
)
from fault_scenarios import runner
from fault_scenarios.catalogue import SCENARIOS, OutsideAction, Scenario

UNEVEN = next(scenario for scenario in SCENARIOS if scenario.name == "uneven_data")
KILLED = next(scenario for scenario in SCENARIOS if scenario.name == "killed")

# Plays `desync watch`: it has one child as its job, prints what that "rank" would, and reports how the child ended.
WATCHER = """
import pathlib, subprocess, sys
run_dir, report, announced = sys.argv[1:]
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
pid = child.pid if announced == "child" else announced
print("rank 0 is ready (pid 1)", end="", flush=True)  # as unbuffered ranks may do: two in one line
print(f"rank 1 is ready (pid {pid})", flush=True)
if announced != "child":
    child.stdin.close()
status = child.wait()
pathlib.Path(run_dir).mkdir()
pathlib.Path(run_dir, "report.json").write_text(report)
print("the child ended with", status, flush=True)
sys.exit(1 if status == -9 else 0)
"""


def make_report(scenario: Scenario, culprits: tuple[int, ...] = (), frames: tuple[Frame, ...] = ()) -> Report:
    """A report with the verdict that a scenario must get; ``frames`` are the stack of its culprits."""
    culprits = culprits or scenario.culprits
    return Report(
        job=JobEntry((), scenario.world_size, (), None, (), None, None, None, 0),
        verdict=Verdict(scenario.status, scenario.cause, Certainty.PROVEN, culprits, "summary", "advice"),
        findings=(),
        divergence=None,
        ranks=(),
        stacks=(MergedStack(culprits, "py-spy", "MainThread", frames),),
        timing=TimingEntry(None, None, None),
        notes=(),
    )


def failed(scenario: Scenario, report: Report, exit_status: int) -> list[str]:
    return [check.what for check in runner.compare(scenario, report, exit_status) if not check.passed]


def _site() -> Frame:
    line = UNEVEN.call_site_line()
    assert line is not None
    return Frame("train", f"/anywhere/{UNEVEN.program}", line)


def test_what_is_as_expected_and_what_is_not() -> None:
    good = make_report(UNEVEN, frames=(_site(),))
    assert failed(UNEVEN, good, 3) == []
    assert failed(UNEVEN, good, 0) == ["exit status"]
    assert failed(UNEVEN, make_report(UNEVEN, culprits=(1,), frames=(_site(),)), 3) == ["culprits", "call site"]
    other_line = replace(_site(), line=_site().line + 1)
    assert failed(UNEVEN, make_report(UNEVEN, frames=(other_line,)), 3) == ["call site"]
    wrong = replace(good, verdict=replace(good.verdict, status=Status.CRASH, cause=Cause.UNKNOWN))
    assert failed(UNEVEN, wrong, 3) == ["status", "cause"]


def test_no_finding_may_blame_anybody_else() -> None:
    good = make_report(UNEVEN, frames=(_site(),))
    follows = FindingEntry(Status.CRASH, Cause.KILLED, Certainty.PROVEN, (2,), "summary", "advice", (), follows_from=0)
    assert failed(UNEVEN, replace(good, findings=(follows,)), 3) == []
    assert failed(UNEVEN, replace(good, findings=(replace(follows, culprit_ranks=(0, 2)),)), 3) == ["nobody else"]


def test_the_call_site_is_found_wherever_the_report_shows_the_culprit() -> None:
    bare = make_report(UNEVEN)
    assert failed(UNEVEN, bare, 3) == ["call site"]
    here = RankAtDivergence(OperationState.MISMATCHED, "barrier", None, None, None, None, None, 8, _site())
    for rank, wrong in ((2, []), (0, ["call site"])):
        divergence = DivergenceEntry("0", (0, 1, 2, 3), "collective", 8, "all_reduce", None, {rank: here})
        assert failed(UNEVEN, replace(bare, divergence=divergence), 3) == wrong
        error = ExceptionEntry("RuntimeError", "no", frames=(_site(),))
        entry = RankEntry(rank, None, None, RankState.RAISED, None, error, ProgressEntry(0, 0, 0, 0, False), None)
        assert failed(UNEVEN, replace(bare, ranks=(entry,)), 3) == wrong


def test_the_command_runs_this_python_and_this_program() -> None:
    command = runner.watch_command(KILLED, Path("somewhere"))
    assert command[:4] == [sys.executable, "-m", "desync", "watch"]
    assert command[command.index("--run-dir") + 1] == "somewhere"
    launch = command[command.index("--") + 1 :]
    assert launch[launch.index("--nproc-per-node") + 1 :] == ["3", str(KILLED.path)]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is no part of the job."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def _play(monkeypatch: pytest.MonkeyPatch, report: str, announced: str, program: str = WATCHER) -> None:
    monkeypatch.setattr(
        runner, "watch_command", lambda scenario, run_dir: [sys.executable, "-c", program, str(run_dir), report, announced]
    )


def test_the_outside_action_is_done_to_the_rank_that_announces_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _play(monkeypatch, to_json(make_report(KILLED)), "child")
    shown: list[bytes] = []
    outcome = runner.run(KILLED, tmp_path / "run", shown.append)
    assert outcome.as_expected, outcome
    assert shown[-1] == f"the child ended with {-signal.SIGKILL}\n".encode()


def test_nothing_outside_the_job_is_ever_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bystander: subprocess.Popen[bytes]
) -> None:
    _play(monkeypatch, to_json(make_report(KILLED)), str(bystander.pid))
    outcome = runner.run(KILLED, tmp_path / "run")
    assert [check.what for check in outcome.checks if not check.passed] == ["exit status"]
    assert bystander.poll() is None


def test_a_run_that_is_late_is_ended_with_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _play(monkeypatch, "", "child")
    waiting = replace(KILLED, outside_action=OutsideAction(signal.SIGKILL, rank=2), timeout_s=2)
    outcome = runner.run(waiting, tmp_path / "run")
    assert outcome.problem == "not over after 2 s"
    assert not outcome.as_expected


@pytest.mark.parametrize(
    ("report", "words"),
    [(None, "desync watch wrote no report; exit status 5; the last line printed: bad \\x1bword"), ("{}", "no desync report")],
)
def test_a_run_without_a_report_says_why(
    report: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _play(monkeypatch, "", "", program="import os; os.write(2, b'bad \\x1bword\\n'); raise SystemExit(5)")
    if report is not None:
        (tmp_path / "report.json").write_text(report)
    outcome = runner.run(KILLED, tmp_path)
    assert outcome.problem is not None
    assert words in outcome.problem
    assert not outcome.as_expected
    assert os.listdir(tmp_path) == ([] if report is None else ["report.json"])


def test_a_scenario_that_may_hang_is_right_either_way_but_for_its_cause() -> None:
    chance = replace(UNEVEN, status=Status.MISMATCH, cause=Cause.GROUP_CREATION, call_site=None, exit_status=0, may_hang=True)
    report = make_report(chance)
    stuck = replace(report, verdict=replace(report.verdict, status=Status.HANG))
    assert failed(chance, report, 0) == failed(chance, stuck, 3) == []
    assert failed(chance, stuck, 0) == ["exit status"]
    other = replace(stuck, verdict=replace(stuck.verdict, cause=Cause.UNKNOWN))
    assert failed(chance, other, 3) == ["cause"]
    assert failed(replace(chance, may_hang=False), stuck, 3) == ["status", "exit status"]
