"""``desync watch`` as its user sees it, over jobs whose ranks are played (see players.py)."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from desync.diagnosis import diagnose
from desync.diagnosis.claims import interpret
from desync.evidence.liveness import is_alive
from desync.model import Status
from desync.watch.leftover import load_run

PLAYERS = Path(__file__).with_name("players.py")
LATE_S = 120
"""No test depends on how fast this is; after so long something is broken."""


@dataclass
class Watched:
    """A running ``desync watch``."""

    process: subprocess.Popen[bytes]
    folder: Path

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LATE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}\n{self.text('err')}\n{self.text('out')}"
            time.sleep(0.02)

    def cue(self) -> None:
        (self.folder / "cue").touch()

    def wait(self) -> int:
        return self.process.wait(LATE_S)

    @property
    def report(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.text("run/report.json"))
        return content

    def ranks_alive(self) -> int:
        pids = [int(path.name.split(".")[-2]) for path in (self.folder / "run" / "journals").glob("*.journal")]
        return sum(is_alive(pid, 0) for pid in pids)


@contextmanager
def watching(folder: Path, *arguments: str | Path, before: tuple[str, ...] = ()) -> Iterator[Watched]:
    """``desync watch`` with its output in files, as a user would redirect it; ``before``: a program that starts it."""
    command = [*before, sys.executable, "-m", "desync", "watch", "--run-dir", folder / "run", *arguments]
    environment = {**os.environ, "PLAYERS_CUE": str(folder / "cue")}
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
    try:
        yield Watched(process, folder)
    finally:
        process.kill()
        process.wait()


def play(name: str, *options: str) -> tuple[str | Path, ...]:
    return (*options, "--", sys.executable, PLAYERS, name)


def test_a_healthy_job_gets_one_line_and_keeps_its_status(tmp_path: Path) -> None:
    with watching(tmp_path, *play("agree")) as watched:
        assert watched.wait() == 0
    assert watched.text("out") == watched.text("run/output.log") == "launched agree\nlauncher ends\n"
    (line,) = watched.text("err").splitlines()
    assert line.startswith("desync: healthy")
    assert str(tmp_path / "run") in line
    report = watched.report
    assert (report["verdict"]["status"], report["verdict"]["cause"]) == ("healthy", "none")
    assert [rank["exit_code"] for rank in report["ranks"]] == [0, 0]
    job = report["job"]
    assert (job["world_size"], job["torch"], job["backends"], job["exit_code"]) == (2, "2.13.0", ["gloo"], 0)
    assert job["ended"] > job["started"]


def test_a_hang_is_reported_with_stacks_and_the_whole_job_ended(tmp_path: Path) -> None:
    with watching(tmp_path, *play("other_operation", "--on-hang", "kill", "--hang-after", "1")) as watched:
        assert watched.wait() == 3
    report = watched.report
    assert (report["verdict"]["status"], report["divergence"]["seq"]) == ("hang", 3)
    assert {rank for stack in report["stacks"] for rank in stack["ranks"]} == {0, 1}
    assert any(frame["function"] == "other_operation" for stack in report["stacks"] for frame in stack["frames"])
    assert report["timing"]["diverged_at"]
    assert report["timing"]["stacks_after_s"] >= report["timing"]["detected_after_s"] >= 0
    shown = watched.text("err")
    assert shown.index("taking stacks") < shown.index("Where they part") < shown.index("ending the hung job")
    assert re.fullmatch(r"desync: hang \(.{1,60}\); report: .*/run/report\.html", shown.splitlines()[-1])
    assert any("desync ended the hung job" in note for note in report["notes"])
    assert watched.ranks_alive() == 0


def test_a_signal_is_handed_on_and_the_report_is_still_written(tmp_path: Path) -> None:
    with watching(tmp_path, *play("other_operation")) as watched:
        watched.until(lambda: "stacks" in watched.text("err") and "where" in watched.text("err").lower(), "report")
        os.kill(watched.process.pid, signal.SIGINT)
        assert watched.wait() == 128 + signal.SIGINT
    report = watched.report
    assert report["verdict"]["status"] == "hang"
    assert any("SIGINT" in note for note in report["notes"])
    assert report["stacks"]
    assert watched.ranks_alive() == 0, "ranks that outlive an interrupted launcher are ended"


def newest_wait_s(run: Path) -> float:
    """For how long rank 0 has been in its newest operation."""
    trace = load_run(run).trace(0)
    entered = trace.operations.entered[-1] if trace is not None and len(trace.operations) == 3 else time.time_ns()
    return (time.time_ns() - entered) / 1e9


def test_who_ends_a_job_before_its_time_reads_who_waited_for_whom(tmp_path: Path) -> None:
    with watching(tmp_path, *play("late", "--hang-after", "600")) as watched:
        watched.until(lambda: watched.ranks_alive() == 2 and newest_wait_s(tmp_path / "run") > 2.1, "wait")
        os.kill(watched.process.pid, signal.SIGTERM)
        assert watched.wait() == 128 + signal.SIGTERM
    report = watched.report
    assert (report["verdict"]["status"], report["verdict"]["culprit_ranks"]) == ("unknown", [])
    assert "when the job was told to end, and rank 1 was not there yet" in report["verdict"]["summary"]
    assert {rank["state"] for rank in report["ranks"]} == {"killed"}
    assert any(frame["function"] == "wait_for_cue" for stack in report["stacks"] for frame in stack["frames"])
    assert "when the job was told to end, and rank 1" in watched.text("err")
    left = load_run(tmp_path / "run")
    assert left.job.told_to_end is not None
    assert "the watcher was sent SIGTERM and handed it on to the job" in left.notes
    assert [each.summary for each in interpret(left).findings] == [report["verdict"]["summary"]]


def test_who_is_late_and_at_work_is_said_in_a_line_and_when_the_job_is_ended(tmp_path: Path) -> None:
    with watching(tmp_path, *play("busy", "--hang-after", "0.5")) as watched:
        watched.until(lambda: "waiting for" in watched.text("err"), "line")
        assert not (tmp_path / "run" / "report.json").exists()
        os.kill(watched.process.pid, signal.SIGTERM)
        assert watched.wait() == 128 + signal.SIGTERM
    verdict = watched.report["verdict"]
    assert (verdict["status"], verdict["cause"], verdict["culprit_ranks"]) == ("slow", "slow_rank", [1])
    (line,) = [line for line in watched.text("err").splitlines() if "waiting for" in line]
    assert "Rank 1 is late but still at work" in line


def test_a_killed_watcher_leaves_the_job_its_output_and_its_evidence(tmp_path: Path) -> None:
    with watching(tmp_path, *play("late")) as watched:
        watched.until(lambda: watched.ranks_alive() == 2, "ranks")
        launcher = psutil.Process(watched.process.pid).children()
        watched.process.kill()
        watched.wait()
        assert watched.ranks_alive() == 2
        watched.cue()
        watched.until(lambda: "launcher ends" in watched.text("out"), "output of the job")
        watched.until(lambda: not any(process.is_running() for process in launcher), "end of the job")
    assert watched.text("run/output.log") == watched.text("out")
    evidence = load_run(tmp_path / "run")
    assert evidence.ended
    assert [len(trace.operations) for trace in evidence.traces] == [4, 4]
    assert diagnose(evidence).status is Status.HEALTHY


def test_a_frozen_rank_is_reported_and_its_coming_after_all_is_said(tmp_path: Path) -> None:
    with watching(tmp_path, *play("late", "--hang-after", "1.5")) as watched:
        watched.until(lambda: "taking stacks" in watched.text("err") and watched.report["stacks"], "report")
        live = watched.report
        assert (live["verdict"]["status"], live["verdict"]["culprit_ranks"]) == ("hang", [1])
        assert live["verdict"]["certainty"] == "likely"
        assert "wait_for_cue" in [
            frame["function"] for stack in live["stacks"] if 1 in stack["ranks"] for frame in stack["frames"]
        ]
        watched.cue()
        assert watched.wait() == 0
    assert any(note.startswith("recovered: ") for note in watched.report["notes"])
    assert watched.report["verdict"]["status"] != "hang"
    assert "desync: recovered: " in watched.text("err")


def test_a_rank_that_cannot_end_when_all_is_done_is_named_and_ended(tmp_path: Path) -> None:
    with watching(tmp_path, *play("lingers", "--on-hang", "kill", "--hang-after", "1.5")) as watched:
        assert watched.wait() == 3
    verdict = watched.report["verdict"]
    assert (verdict["status"], verdict["cause"], verdict["culprit_ranks"]) == ("hang", "teardown", [1])
    assert verdict["places"][0]["frame"]["function"] == "lingers"
    assert watched.ranks_alive() == 0


def test_a_rank_that_is_stopped_inside_an_operation_is_told_from_those_that_wait(tmp_path: Path) -> None:
    with watching(tmp_path, *play("stopped", "--on-hang", "kill", "--hang-after", "1.5")) as watched:
        assert watched.wait() == 3
    verdict = watched.report["verdict"]
    assert (verdict["status"], verdict["cause"], verdict["culprit_ranks"]) == ("hang", "stalled_rank", [1])
    assert watched.ranks_alive() == 0


def test_a_rank_that_is_killed_is_named_with_its_signal_while_its_launcher_notices_nothing(tmp_path: Path) -> None:
    with watching(tmp_path, *play("killed", "--on-hang", "kill", "--hang-after", "1")) as watched:
        assert watched.wait() == 3
    verdict = watched.report["verdict"]
    assert (verdict["status"], verdict["cause"], verdict["culprit_ranks"]) == ("crash", "killed", [1])
    assert any(stack["ranks"] == [0] for stack in watched.report["stacks"])


def test_a_rank_that_begins_when_another_was_reported_as_killed_is_looked_at_before_it_is_ended(tmp_path: Path) -> None:
    with watching(tmp_path, *play("killed_early", "--on-hang", "kill", "--hang-after", "1")) as watched:
        assert watched.wait() == 3
    verdict = watched.report["verdict"]
    assert (verdict["status"], verdict["cause"], verdict["culprit_ranks"]) == ("crash", "killed", [1])
    assert "killed_early" in [frame["function"] for stack in watched.report["stacks"] for frame in stack["frames"]]


def test_an_elastic_job_that_recovers_is_healthy_and_its_failed_attempt_is_said(tmp_path: Path) -> None:
    with watching(tmp_path, *play("restarted")) as watched:
        assert watched.wait() == 0
    report = watched.report
    assert (report["job"]["attempt"], report["job"]["exit_code"]) == (1, 0)
    assert (report["verdict"]["status"], report["verdict"]["culprit_ranks"]) == ("healthy", [])
    assert any("attempt 0 failed and was restarted" in note and "ank 1" in note for note in report["notes"])


@pytest.mark.parametrize(
    ("program", "status"),
    [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 15)", 143), ("print('no ranks')", 0)],
)
def test_a_job_without_ranks_keeps_its_status_and_is_not_called_healthy_or_broken(
    tmp_path: Path, program: str, status: int
) -> None:
    with watching(tmp_path, "--", sys.executable, "-c", program) as watched:
        assert watched.wait() == status
    assert watched.report["verdict"]["status"] == "unknown"
    assert watched.report["job"]["exit_code"] == (status if status < 128 else 128 - status)


def test_options_after_the_command_are_the_commands(tmp_path: Path) -> None:
    with watching(tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:])", "--run-dir", "x", "--", "-v") as watched:
        assert watched.wait() == 0
    assert watched.text("out") == "['--run-dir', 'x', '--', '-v']\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hang-after", "3"), "no command given; "),
        (("--",), "no command given; "),
        (("no-such-program", "x"), "command not found: 'no-such-program'; "),
        (("--run-dir", str(PLAYERS.parent), "true"), "is not empty; "),
        (("--run-dir", "/proc/x", "true"), "cannot be made"),
        (("--hang-after", "0", "true"), "no number of seconds above 0"),
        (("--on-hang", "stop", "true"), "--on-hang"),
    ],
)
def test_wrong_use_gets_one_line_and_status_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-m", "desync", "watch", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LATE_S)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line
    assert not any(tmp_path.iterdir()), "nothing is left behind by a job that never began"


def test_the_watcher_does_not_import_torch_and_survives_a_diagnosis_that_fails(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from desync.watch.session import Options, watch
def diagnose(evidence):
    raise ZeroDivisionError("a defect")
command = (sys.executable, {str(PLAYERS)!r}, "agree")
status = watch(Options(command, run_dir=Path("run")), diagnose)
print(status, "torch" in sys.modules, "rich" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=LATE_S)
    assert done.stdout.splitlines()[-1] == "0 False True"
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["verdict"]["status"] == "unknown"
    assert any("ZeroDivisionError: a defect" in note for note in report["notes"])
