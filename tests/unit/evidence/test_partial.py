"""Dumps of some ranks only."""

from __future__ import annotations

from pathlib import Path

import pytest

from desync.cli.explain import explain
from desync.model import Certainty, Status

from . import dumps as made
from .test_flight_recorder import waiting


@pytest.mark.parametrize("ranks", [(2,), (0, 1)])
def test_ranks_that_agree_with_themselves_are_no_healthy_job(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    report = explain([str(made.write(tmp_path / "dumps", {rank: made.dump(made.steps(9)) for rank in ranks}))])
    assert report.verdict.status is Status.UNKNOWN
    assert f"{len(ranks)} of 4 ranks" in report.verdict.summary


def test_dumps_of_all_ranks_that_agree_are(tmp_path: Path) -> None:
    dumps = {rank: made.dump(made.steps(9)) for rank in range(4)}
    assert explain([str(made.write(tmp_path / "dumps", dumps))]).verdict.status is Status.HEALTHY


def test_those_that_wait_still_tell_of_a_hang(tmp_path: Path) -> None:
    assert explain([str(made.write(tmp_path / "dumps", waiting([0, 1, 3])))]).verdict.status is Status.HANG


def test_names_counted_from_one_make_every_finding_possible_at_best(tmp_path: Path) -> None:
    dumps = waiting([1, 2, 4]) | {3: made.dump(made.steps(4))}
    report = explain([str(made.write(tmp_path / "dumps", dumps))])
    assert report.verdict.certainty is Certainty.POSSIBLE
    assert any("do not hold them" in note for note in report.notes)


def test_a_dump_of_yesterday_is_left_out(tmp_path: Path) -> None:
    day = 86_400_000_000_000
    old = [
        each | {"time_created_ns": each["time_created_ns"] - day, "time_discovered_completed_ns": each["time_created_ns"] - day}
        for each in made.steps(3)
    ]
    report = explain([str(made.write(tmp_path / "dumps", {**waiting([0, 3]), 1: made.dump(old)}))])
    assert 1 not in report.verdict.culprit_ranks or report.verdict.certainty is Certainty.POSSIBLE
    assert any("left out" in note for note in report.notes)


def test_a_rank_that_is_some_minutes_behind_is_not_left_out(tmp_path: Path) -> None:
    dumps = {**waiting([0, 1, 3]), 2: made.dump(made.steps(4))}
    report = explain([str(made.write(tmp_path / "dumps", dumps))])
    assert report.verdict.culprit_ranks == (2,)
    assert not any("left out" in note for note in report.notes)
