"""Helpers, wrappers and touchy objects that a rank brings along: none of them changes the job or takes the rank's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from desync.evidence.journals import JournalFolder
from desync.model import Job, Trace
from tests.integration import jobs

pytestmark = pytest.mark.job

PROGRAM = jobs.PROGRAMS / "guests.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the job has run."""
    folder = tmp_path_factory.mktemp("run")
    environment = jobs.recorded(folder, {"DESYNC_RANK_PID": None})
    job = jobs._finish(jobs.start_ranks(PROGRAM, environment, str(folder)), folder, 120, read=False)
    assert job.statuses == (0, 0), job.output
    return folder


@pytest.fixture(scope="module")
def said(folder: Path) -> list[dict[str, Any]]:
    """What the ranks themselves have seen."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def traces(folder: Path) -> tuple[Trace, ...]:
    journals = JournalFolder(folder / "journals")
    journals.refresh()
    found = journals.evidence(Job()).traces
    journals.close()
    return found


def test_the_ranks_are_those_that_train(traces: tuple[Trace, ...], said: list[dict[str, Any]], folder: Path) -> None:
    assert [(trace.rank, trace.pid, trace.world_size) for trace in traces] == [(n, said[n]["pid"], 2) for n in range(2)]
    # The helper's own, of a job of one rank, is the third.
    assert len(list((folder / "journals").glob("*.journal"))) == 3
    assert [trace.notes for trace in traces] == [(), ()]


def test_a_helper_that_imports_torch_opens_no_journal(said: list[dict[str, Any]]) -> None:
    assert [(seen["helpers"], seen["at_import"]) for seen in said] == [
        (False, True),
        (False, False),  # its wrapper might have been the rank: only init_process_group says that it is
    ]


def test_groups_are_made_of_iterators_as_before(traces: tuple[Trace, ...]) -> None:
    for trace in traces:
        members = [row.call.members for row in jobs.operations(trace) if row.call.op == "new_group"]
        assert members == [None, None, (0, 1), (0, 1), (0, 1), None]


def test_exceptions_whose_arguments_raise_reach_no_one_else(traces: tuple[Trace, ...], said: list[dict[str, Any]]) -> None:
    for trace, seen in zip(traces, said, strict=True):
        assert seen["caught"] == ["SystemExit 3"] * 3
        assert [mark.failure.type for mark in trace.marks if mark.failure] == [
            "RuntimeError",
            "__main__.TouchyError",
            "SystemExit",
        ]
        assert len([row for row in jobs.operations(trace) if row.call.op == "all_reduce"]) == 4
