"""The recorder under signals, threads and forks; and that it keeps no tensor alive and does not grow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from desync.model import Operation
from tests.integration import jobs
from tests.integration.jobs import operations

pytestmark = pytest.mark.job

PROGRAM = jobs.PROGRAMS / "adverse.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> jobs.Finished:
    folder = tmp_path_factory.mktemp("run")
    # Room for all that is recorded, so that every sequence can be looked at whole.
    finished = jobs.run_ranks(PROGRAM, folder, str(folder), env={"DESYNC_JOURNAL_SLOTS": "131072"}, timeout_s=150)
    assert finished.statuses == (0, 0), finished.output
    assert finished.traces[0].dropped == 0
    return finished


@pytest.fixture(scope="module")
def result(job: jobs.Finished) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.folder / "result.json").read_text())
    return found


@pytest.fixture(scope="module")
def rows(job: jobs.Finished) -> dict[str, list[Operation]]:
    """The operations of each group, by its description."""
    trace = job.traces[0]
    found: dict[str, list[Operation]] = {group.description or "": [] for group in trace.groups.values()}
    for row in operations(trace):
        found[trace.groups[row.group].description or ""].append(row)
    return found


def test_tensors_are_freed_as_soon_as_the_job_lets_go_of_them(result: dict[str, Any]) -> None:
    assert result["freed"] == {"waited": True, "never waited": True, "p2p": True, "forgotten": True}


def test_signal_handlers_may_communicate_in_the_middle_of_recording(
    job: jobs.Finished, rows: dict[str, list[Operation]], result: dict[str, Any]
) -> None:
    for name, expected in (("signals", result["signals"]["main"]), ("handlers", result["signals"]["handlers"])):
        assert [row.seq for row in rows[name]] == list(range(1, expected + 1))
        assert {row.call.op for row in rows[name]} == {"all_reduce"}
        # What could not be written in that moment is left out; nothing is ever taken for something else.
        assert all(row.call.inputs.shapes in (((row.seq,),), ()) for row in rows[name])
        assert any(row.call.inputs.shapes for row in rows[name])
    assert not any("damaged" in note for note in job.traces[0].notes)


def test_an_exception_of_a_signal_handler_is_never_swallowed(job: jobs.Finished, result: dict[str, Any]) -> None:
    assert result["raising"] == {"raised": 150, "caught": 150}
    assert [note for note in job.traces[0].notes if "failed" in note] == []


def test_threads_have_sequences_of_their_own(rows: dict[str, list[Operation]]) -> None:
    threads = [rows[f"thread {number}"] for number in range(4)]
    for own in threads:
        assert [row.seq for row in own] == list(range(1, 1001))
        assert [row.call.inputs.shapes for row in own] == [((1 + number % 100,),) for number in range(1000)]
        assert len({row.thread for row in own}) == 1
    assert len({own[0].thread for own in threads}) == 4


def test_children_forked_in_the_middle_of_interning_neither_hang_nor_write(
    job: jobs.Finished, rows: dict[str, list[Operation]], result: dict[str, Any]
) -> None:
    assert result["forks"] == [6] * 10
    assert rows["children"] == []
    assert len(rows["interning"]) > 0
    assert len(list((job.folder / "journals").iterdir())) == 2


def test_the_process_does_not_grow_with_the_number_of_operations(result: dict[str, Any]) -> None:
    # Kept for each of 20000 operations, as little as 250 bytes would show.
    assert result["memory"]["equal"] < 4 * MIB
    assert result["memory"]["different"] < 12 * MIB
