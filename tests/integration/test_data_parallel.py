"""DDP: the buckets of its reducer have the names of the parameters that they really hold."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest

from desync.model import MarkKind, Operation
from tests.integration import jobs

pytestmark = pytest.mark.job

PROGRAM = jobs.PROGRAMS / "data_parallel.py"
SHOWN = 6
"""Names in a label; the rest are counted."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> jobs.Finished:
    folder = tmp_path_factory.mktemp("run")
    finished = jobs.run_ranks(PROGRAM, folder, str(folder))
    assert finished.statuses == (0, 0), finished.output
    assert [trace.notes for trace in finished.traces.values()] == [(), ()]
    return finished


def actual(job: jobs.Finished, name: str) -> list[list[list[str]]]:
    """The parameters of each bucket of each backward, as the program saw them in the reducer."""
    layouts: list[list[list[str]]] = json.loads((job.folder / "0.json").read_text())["actual"][name]
    return layouts


def launched(job: jobs.Finished, marker: str) -> list[Operation]:
    """The all_reduces of a line, in order."""
    seen = jobs.by_marker(jobs.operations(job.traces[0]), PROGRAM)[marker]
    return [operation for operation in seen if operation.call.op == "all_reduce"]


def names(label: str | None) -> tuple[int, list[str], int]:
    """Number of a bucket, the names in its label, and how many it leaves out."""
    match = re.fullmatch(r"DDP bucket (\d+)(?: of [\w#]+)?: (.*?)(?:, … (\d+) more)?", label or "")
    assert match is not None, label
    return int(match[1]), match[2].split(", "), int(match[3] or 0)


def check(operations: Sequence[Operation], layouts: Sequence[Sequence[Sequence[str]]]) -> None:
    """Each backward launches its buckets in order, and each has the names that the reducer gave it."""
    expected = [
        (number, list(bucket[:SHOWN]), max(0, len(bucket) - SHOWN))
        for layout in layouts
        for number, bucket in enumerate(layout)
    ]
    assert [names(operation.call.bucket) for operation in operations] == expected


@pytest.mark.parametrize("part", ["plain", "compressed", "accumulated"])
def test_buckets_are_named_before_and_after_the_rebuild(job: jobs.Finished, part: str) -> None:
    layouts = actual(job, part)
    assert layouts[0] != layouts[1], "the buckets were not rebuilt: this shows nothing"
    check(launched(job, part), layouts)


@pytest.mark.parametrize("part", ["unused", "static"])
def test_the_map_of_used_parameters_is_no_bucket(job: jobs.Finished, part: str) -> None:
    operations = launched(job, part)
    maps = [operation for operation in operations if (operation.call.bucket or "").startswith("DDP's map of used parameters")]
    assert {operation.call.inputs.dtype for operation in maps} == {"int32"}
    assert len(maps) == (4 if part == "unused" else 1)
    check([operation for operation in operations if operation not in maps], actual(job, part))


def test_all_that_a_comm_hook_launches_belongs_to_its_bucket(job: jobs.Finished) -> None:
    operations = launched(job, "power")
    # Two plain backwards of one bucket, then three all_reduces in each, two of them from callbacks of futures.
    assert len(operations) == 2 + 2 * 3
    layouts = actual(job, "power")
    check(operations, [layouts[0], layouts[1], *[layouts[2]] * 3, *[layouts[3]] * 3])


def test_without_sync_nothing_is_launched(job: jobs.Finished) -> None:
    assert "no_sync" not in {jobs.at(operation, PROGRAM) for operation in launched(job, "accumulated")}
    seen = jobs.by_marker(jobs.operations(job.traces[0]), PROGRAM)
    assert all(operation.call.bucket is None for operation in seen.get("no_sync", ()))
    forwards = [(jobs.at(mark, PROGRAM), mark.value) for mark in jobs.marks(job.traces[0], MarkKind.FORWARD)]
    assert [value for marker, value in forwards if marker in ("no_sync", "accumulated")] == ["no_sync", "sync"] * 3


def test_buckets_of_two_modules_of_equal_sizes_are_told_apart(job: jobs.Finished) -> None:
    operations = launched(job, "two")
    of = [re.search(r" of ([A-Za-z]+)", operation.call.bucket or "") for operation in operations]
    for module in ("Net", "Critic"):
        own = [operation for operation, match in zip(operations, of, strict=True) if match and match[1] == module]
        check(own, actual(job, f"two.{module}"))
    # Backward meets the critic first, which was called last.
    assert [match[1] for match in of if match][:2] == ["Critic", "Net"]


def test_modules_are_described_with_their_last_layout(job: jobs.Finished) -> None:
    modules = {module.name: module for module in job.traces[0].ddp}
    plain, unused = modules["Net"], modules["Net#2"]
    assert [[plain.parameters[index] for index in bucket] for bucket in plain.buckets] == actual(job, "plain")[-1]
    assert (plain.find_unused_parameters, unused.find_unused_parameters) == (False, True)
    assert [module.static_graph for module in job.traces[0].ddp][:3] == [False, False, True]
    assert modules["Critic"].group == "default_pg"


def test_marks_of_forward_and_backward_stand_where_they_happened(job: jobs.Finished) -> None:
    trace = job.traces[0]
    found = [mark for mark in jobs.marks(trace, MarkKind.FORWARD, MarkKind.BACKWARD) if jobs.at(mark, PROGRAM) == "plain"]
    assert [mark.kind for mark in found] == [MarkKind.FORWARD, MarkKind.BACKWARD] * 4
    assert all(mark.left is not None and mark.left >= mark.time for mark in found)
    rows = jobs.operations(trace)
    for mark in found[3::2]:
        assert [row.call.bucket is not None for row in rows[mark.after : mark.after + 3]] == [True] * 3
    assert trace.progress.forwards == len(jobs.marks(trace, MarkKind.FORWARD))
    assert trace.progress.backwards == len(jobs.marks(trace, MarkKind.BACKWARD))


def test_the_recorder_keeps_no_module_alive(job: jobs.Finished) -> None:
    assert [json.loads((job.folder / f"{rank}.json").read_text())["freed"] for rank in (0, 1)] == [True, True]
