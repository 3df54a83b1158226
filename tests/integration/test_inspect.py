"""``desync inspect`` on jobs that run, were started without desync, and go on undisturbed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT, end_tree
from tests.integration import jobs

pytestmark = [pytest.mark.job, pytest.mark.timeout(240)]

STANDING = jobs.PROGRAMS / "standing.py"
LATE_S = 120.0
LOOKS = 6
"""On a busy machine a rank may not be where it stays when it is looked at for the first time."""


@contextlib.contextmanager
def running(folder: Path, play: str, ranks: int, command: list[str], more: dict[str, str] | None = None) -> Iterator[int]:
    """A job whose ranks are all ready; yields the process that started them."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, str(STANDING), play, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**jobs.plain(), **(more or {})},
            cwd=ROOT,
        )
    try:
        wait_until(lambda: len(list(folder.glob("ready.*"))) == ranks, lambda: (folder / "output").read_text())
        yield process.pid
        (folder / "stop").touch()
        if play == "train":
            assert process.wait(LATE_S) == 0, "a job that was looked at goes on and ends well"
    finally:
        if process.poll() is None:
            end_tree(process.pid)
        process.wait()


def wait_until(true: Callable[[], bool], said: Callable[[], str]) -> None:
    end = time.monotonic() + LATE_S
    while not true():
        assert time.monotonic() < end, said()
        time.sleep(0.1)


def torchrun(ranks: int) -> list[str]:
    return [jobs.PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def desync(*arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "desync", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=LATE_S, check=False
    )
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout if status == 0 else done.stderr


def looked_at(pid: int, *more: str) -> dict[str, Any]:
    """What ``desync inspect`` says, as soon as it says that something is wrong."""
    for _ in range(LOOKS):
        report: dict[str, Any] = json.loads(desync("inspect", str(pid), "--format", "json", *more))
        if report["findings"]:
            break
    return report


def ranks_below(pid: int) -> list[int]:
    """The ranks that a launcher has started."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that ends just now is none
            if "RANK" in child.environ():
                found.append(child.pid)
    return found


def child_with(pid: int, word: str) -> int:
    """The child of a process whose command holds the word."""
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):
            if word in child.cmdline():
                return child.pid
    raise AssertionError(f"no child of {pid} has {word!r} in its command")


def test_the_rank_that_is_elsewhere_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path, "stuck", 4, torchrun(4)) as pid:
        report = looked_at(pid)
        by_rank = json.loads(desync("inspect", str(ranks_below(pid)[0]), "--format", "json"))
        begun = time.monotonic()
        shown = desync("inspect", str(pid))
        with capsys.disabled():
            print(f"[inspect of a hung job of 4 ranks: {time.monotonic() - begun:.1f} s] ", end="")
        assert all(psutil.Process(rank).status() == psutil.STATUS_SLEEPING for rank in ranks_below(pid))

    verdict = report["verdict"]
    assert (verdict["status"], verdict["cause"], verdict["certainty"]) == ("hang", "stalled_rank", "possible")
    assert verdict["culprit_ranks"] == by_rank["verdict"]["culprit_ranks"] == [2]
    (place,) = [place for place in verdict["places"] if place["ranks"] == [2]]
    assert (place["frame"]["file"], place["frame"]["line"]) == (str(STANDING), jobs.line_of(STANDING, "stay"))
    waiting = report["divergence"]["by_rank"]["0"]
    assert (waiting["state"], waiting["op"]) == ("waiting", "all_reduce")
    assert waiting["callsite"]["line"] == jobs.line_of(STANDING, "all_reduce")
    assert {tuple(stack["ranks"]) for stack in report["stacks"] if stack["thread"] == "MainThread"} == {(2,), (0, 1, 3)}
    assert shown.startswith("HANG · stalled_rank · rank 2 · possible")


def test_who_waits_for_what_it_began_before_is_no_odd_one(tmp_path: Path) -> None:
    with running(tmp_path, "begun_before", 3, torchrun(3)) as pid:
        report = looked_at(pid)
    assert report["verdict"]["culprit_ranks"] == [2]
    assert report["divergence"]["by_rank"]["0"]["callsite"]["line"] == jobs.line_of(STANDING, "wait")


def test_the_rank_in_another_call_is_named_and_why_is_left_open(tmp_path: Path) -> None:
    with running(tmp_path, "other_call", 3, torchrun(3)) as pid:
        report = looked_at(pid)
    verdict = report["verdict"]
    assert (verdict["cause"], verdict["certainty"], verdict["culprit_ranks"]) == ("unknown", "possible", [1])
    lines = {rank: entry["callsite"]["line"] for rank, entry in report["divergence"]["by_rank"].items()}
    backward, barrier = jobs.line_of(STANDING, "backward"), jobs.line_of(STANDING, "barrier")
    assert lines == {"0": backward, "1": barrier, "2": backward}


def test_a_training_that_is_well_gets_no_finding_and_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, "train", 2, torchrun(2)) as pid:
        report = json.loads(desync("inspect", str(pid), "--format", "json", "--check"))
        shown = desync("inspect", str(pid))
    assert report["findings"] == []
    assert report["verdict"]["culprit_ranks"] == []
    assert "HANG" not in shown


def test_ranks_that_a_program_spawns_are_found_by_their_stacks(tmp_path: Path) -> None:
    with running(tmp_path, "spawned", 2, [jobs.PYTHON]) as pid:
        report = looked_at(pid)
        child = next(entry["pid"] for entry in report["ranks"] if entry["rank"] == 0)
        assert json.loads(desync("inspect", str(child), "--format", "json"))["job"]["world_size"] == 2
    assert report["verdict"]["culprit_ranks"] == [1]
    assert report["divergence"]["by_rank"]["0"]["callsite"]["line"] == jobs.line_of(STANDING, "spawned")


def test_journals_are_used_where_desync_watches_and_when_its_watcher_was_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    watch = [sys.executable, "-m", "desync", "watch", "--run-dir", str(run), "--hang-after", "600", "--"]
    with running(tmp_path, "stuck", 3, [*watch, *torchrun(3)]) as watcher:
        launcher = child_with(watcher, "torch.distributed.run")
        try:
            report = looked_at(launcher)
            os.kill(watcher, signal.SIGKILL)
            psutil.Process(watcher).wait(LATE_S)
            left = json.loads(desync("report", str(run), "--format", "json"))
            explained = json.loads(desync("explain", str(run), "--format", "json"))
        finally:
            end_tree(launcher)
        after = json.loads(desync("report", str(run), "--format", "json"))
    assert not (run / "report.json").exists()
    for each in (report, left, explained, after):
        assert (each["verdict"]["cause"], each["verdict"]["culprit_ranks"]) == ("stalled_rank", [2])
        waiting = each["divergence"]["by_rank"]["0"]
        assert (waiting["op"], waiting["shapes"]) == ("all_reduce", [[3]])
    assert not any("nothing was recorded" in note for note in report["notes"])
    for each in (left, after):
        assert any("made from what was left" in note for note in each["notes"])


def test_ranks_that_sleep_are_blamed_for_nothing_and_one_that_has_ended_is_told(tmp_path: Path) -> None:
    environment = jobs.plain()
    ranks = jobs.start_ranks(STANDING, environment, "left", str(tmp_path), ranks=2)
    try:
        wait_until(lambda: len(list(tmp_path.glob("ready.*"))) == 2, lambda: "not ready")
        both = json.loads(desync("inspect", str(ranks[0].pid), "--format", "json"))
        (tmp_path / "stop").touch()
        ranks[1].wait(LATE_S)
        one = json.loads(desync("inspect", str(ranks[0].pid), "--format", "json"))
    finally:
        for rank in ranks:
            end_tree(rank.pid) if rank.poll() is None else None
            rank.communicate()
    assert (both["verdict"]["status"], both["verdict"]["culprit_ranks"]) == ("unknown", [])
    assert one["verdict"]["culprit_ranks"] == []
    assert one["ranks"][1]["state"] == "exited"


def test_no_job_and_no_such_process_are_one_line() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        try:
            said = desync("inspect", str(other.pid), status=2)
        finally:
            other.kill()
    assert said.startswith(f"desync: error: process {other.pid} (")
    assert "belongs to no distributed job" in said
    gone = desync("inspect", str(other.pid), status=2)
    assert f"there is no process {other.pid}; " in gone
    assert (said + gone).count("\n") == 2
