from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from desync.cli import inspect as command
from desync.cli import main as cli
from desync.model import Activity, Evidence, Job, Motion, Trace
from desync.stacks.pyspy import FORBIDDEN
from desync.watch import living, ranks
from desync.watch.ranks import LivingJob
from tests.unit.diagnosis.test_living import scene

HUNG = scene("barrier@40", "still@7", "barrier@40")
WELL = scene("works@7", "works@8")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says which jobs run here, and what is seen of them."""

    def install(*jobs: LivingJob, seen: Evidence | None = None) -> None:
        monkeypatch.setattr(ranks, "find_jobs", lambda peek, near=None: list(jobs))
        monkeypatch.setattr(ranks, "related", lambda job, pid: job.launcher == pid)
        monkeypatch.setattr(living, "look", lambda job, seconds: seen)

    return install


def job(launcher: int) -> LivingJob:
    command = ("/usr/bin/python3", "/env/bin/torchrun", "x.py")
    return LivingJob({0: launcher + 1, 1: launcher + 2}, 2, launcher, command)


def test_the_only_job_is_looked_at_and_shown(machine: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    machine(job(os.getpid()), seen=HUNG)
    assert cli.main(["inspect"]) == 0
    assert capsys.readouterr().out.startswith("HANG · stalled_rank · rank 1 · possible")
    assert cli.main(["inspect", str(os.getpid()), "--check", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["culprit_ranks"] == [1]


@pytest.mark.parametrize("form", ["html", "markdown", "json"])
def test_other_renderings_can_be_written(
    form: str, machine: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(job(5), seen=HUNG)
    assert cli.main(["inspect", "--format", form, "-o", str(tmp_path / "out")]) == 0
    assert "stalled_rank" in (tmp_path / "out").read_text(encoding="utf-8")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "does",
    [
        ("recv@5>1", "still@7"),
        ("recv@5>1", "recv@5>0"),
        ("init_process_group@3", "still@1"),
        ("new_group@3", "still@1"),
        ("~all_reduce@4", "~all_gather@5", "still@7"),
        ("backward@4", "barrier@5", "wait@6"),
        ("barrier@4", "gone"),
        ("barrier@4", "away"),
        ("hidden",),
    ],
)
def test_every_report_follows_the_schema(does: tuple[str, ...], machine: Callable[..., None], tmp_path: Path) -> None:
    machine(job(5), seen=scene(*does))
    place = tmp_path / "report.json"  # which every test's reports are checked by
    assert cli.main(["inspect", "--format", "json", "-o", str(place)]) == 0
    assert json.loads(place.read_text(encoding="utf-8"))["schema"] == "desync.report/1"
    assert cli.main(["report", str(place)]) == 0


def test_without_a_finding_it_is_said_what_was_seen_with_all_stacks(
    machine: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(job(5), seen=WELL)
    assert cli.main(["inspect", "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "HEALTHY  Both ranks move: no rank stood still in 2.0 s of looking."
    assert lines[lines.index("Stacks  outermost first, py-spy") + 1 :][:5] == [
        "  ranks 0-1",
        "    /job/train.py:9 in main",
        "    rank 0",
        "      /job/data.py:7 in load",
        "    rank 1",
    ]


def test_of_several_jobs_one_has_to_be_named(machine: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    machine(job(os.getpid()), job(700), seen=HUNG)
    assert cli.main(["inspect"]) == 2
    said = capsys.readouterr().err
    named = [f"desync inspect {pid} (2 ranks of python3 torchrun x.py)" for pid in (os.getpid(), 700)]
    assert said == f"desync: error: 2 jobs run here; name one of them: {'; '.join(named)}\n"
    assert cli.main(["inspect", str(os.getpid())]) == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["abc"], "'abc' is no process id"),
        (["0"], "'0' is no process id"),
        (["1", "2"], "unrecognized arguments: 2"),
        (["--for", "0.5"], "no number of seconds from 1 to 3600"),
        (["--for", "nan"], "no number of seconds from 1 to 3600"),
        (["--format", "timeline"], "a timeline needs journals"),
        ([], "no rank of a distributed job runs here; name a PID"),
        (["4194304"], "there is no process 4194304; "),
        ([str(os.getpid())], ") belongs to no distributed job; name the launcher or a rank of one"),
    ],
)
def test_wrong_use_is_one_line(
    argv: list[str], words: str, machine: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    machine()
    assert cli.main(["inspect", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_a_job_that_ends_meanwhile_is_one_line(machine: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    machine(job(5), seen=None)
    assert cli.main(["inspect"]) == 2
    assert "the job ended while it was looked at" in capsys.readouterr().err


def test_without_the_right_to_trace_it_says_what_to_do_and_what_the_kernel_shows(
    machine: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = replace(scene("still@7", "works@8"), stacks=(), notes=(f"no stack of ranks 0, 1: {FORBIDDEN}",))
    machine(job(5), seen=seen)
    assert cli.main(["inspect"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("UNKNOWN No stack could be read (see the notes), so the ranks' calls are not known: rank 1 moved, ")
    assert "rank 0 stood still in 2.0 s of looking." in shown
    assert "no stack of ranks 0, 1: no right to trace it (ptrace); be " in shown
    assert "desync doctor" not in shown


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("0", "be the user that runs the job, or root (sudo $(command -v desync) inspect)"),
        ("1", "sudo sysctl kernel.yama.ptrace_scope=0"),
        ("2", "sudo sysctl kernel.yama.ptrace_scope=1"),
        ("3", "ask its administrator"),
        (None, "be the user that runs the job"),
    ],
)
def test_the_remedy_fits_the_machine(scope: str | None, words: str, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name:\tx\n")
    if scope is not None:
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    remedy = command.ptrace_remedy(tmp_path)
    assert words in remedy
    assert "container" not in remedy
    (tmp_path / "self" / "status").write_text("Seccomp:\t2\n")
    if scope in ("0", None):
        assert "--cap-add=SYS_PTRACE" in command.ptrace_remedy(tmp_path)


def test_a_job_under_desync_watch_is_read_from_its_journals(
    machine: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = replace(job(5), run_directory=str(tmp_path))
    machine(run, seen=HUNG)
    asked: list[Path] = []

    def look_at_run(run_directory: Path, seconds: float) -> Evidence:
        asked.append(run_directory)
        return Evidence(Job(world_size=1), (Trace(0),), {0: Activity(0, Motion.MOVING)})

    monkeypatch.setattr(living, "look_at_run", look_at_run)
    assert cli.main(["inspect", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["culprit_ranks"] == [1], "there are no journals"
    (tmp_path / "journals").mkdir()
    assert cli.main(["inspect", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert asked == [tmp_path]


def test_it_needs_no_torch() -> None:
    program = "import sys; from desync.cli.main import main; main(['inspect', '4194304']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
