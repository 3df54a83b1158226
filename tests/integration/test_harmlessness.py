"""Whatever fails in the recorder, the job ends as it would without, and the record says what is missing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import desync
from desync.model import Kind, MarkKind, Operation, Trace
from desync.watch.environment import startup_folder
from tests.conftest import ROOT
from tests.integration import jobs
from tests.integration.jobs import operations

pytestmark = pytest.mark.job

FAULTS = jobs.PROGRAMS / "hurt.py"
TINY = jobs.PROGRAMS / "tiny.py"
BROKEN = "RuntimeError: broken for the test"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a run directory for each fault."""
    folder = tmp_path_factory.mktemp("faults")
    job = jobs.run_alone(FAULTS, folder, str(folder))
    assert job.status == 0, job.output
    return folder


def traces(runs: Path, fault: str) -> list[Trace]:
    found = jobs.read_traces(runs / fault)
    assert sorted(found) == [0, 1]
    return [found[0], found[1]]


def collectives(trace: Trace) -> list[Operation]:
    return [row for row in operations(trace) if row.call.kind is not Kind.GROUP]


def test_the_job_ends_as_it_would_without_the_recorder(runs: Path) -> None:
    statuses = json.loads((runs / "statuses.json").read_text())
    assert len(statuses) == 12
    assert all(status == [4, 4] for status in statuses.values()), statuses


def test_nothing_is_said_on_the_jobs_terminal(runs: Path) -> None:
    said = {path.parent.name: path.read_text() for path in runs.glob("*/0.out")}
    assert "no journal: FileExistsError" in said.pop("not_writable")  # there was no other place
    assert said == dict.fromkeys(said, "")


def test_the_healthy_run_has_everything(runs: Path) -> None:
    for trace in traces(runs, "nothing"):
        assert trace.notes == ()
        rows = collectives(trace)
        assert [row.call.op for row in rows[-59:]] == ["all_reduce", "send", "recv"] * 19 + ["broadcast", "barrier"]
        assert [row.failed for row in rows[-2:]] == [True, False]
        assert rows[-2].call.root is None  # there is no such rank
        assert not any(row.pending for row in rows)


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        ("sites", f"recording operations failed on this rank: {BROKEN}"),
        ("groups", f"recording operations failed on this rank: {BROKEN}"),
        ("kernels", f"installing the process-group hook failed on this rank: {BROKEN}"),
        ("callbacks", f"seeing operations complete failed on this rank: {BROKEN}"),
        ("parts_of_torch", "installing the process-group hook failed on this rank: AttributeError"),
        ("parts_of_torch", "marking batches failed on this rank: ImportError"),
        ("parts_of_torch", "marking optimizer steps failed on this rank: ImportError"),
    ],
)
def test_the_gap_is_named_in_the_notes(runs: Path, fault: str, note: str) -> None:
    for trace in traces(runs, fault):
        assert any(said.startswith(note) for said in trace.notes), trace.notes
        assert trace.exit is not None
        assert trace.exit.code == 4


def test_a_full_heap_is_named_with_what_is_missing(runs: Path) -> None:
    for trace in traces(runs, "small_heap"):
        assert len(trace.notes) == 1
        assert re.fullmatch(r"\d+ call sites, shapes or messages are missing: the journal's heap was full.*", trace.notes[0])


def test_without_a_journal_the_gap_is_named_beside_it(runs: Path) -> None:
    notes = jobs.read_notes(runs / "no_space")
    assert len(notes) == 2
    assert all("no journal: OSError" in note for note in notes)
    assert jobs.read_traces(runs / "no_space") == {}
    broken = jobs.read_notes(runs / "journal")
    assert any(f"opening the journal failed on this rank: {BROKEN}" in note for note in broken)


def test_operations_keep_their_place_when_they_cannot_be_described(runs: Path) -> None:
    def places(fault: str) -> list[tuple[str, str, int, int | None]]:
        return [(row.group, row.call.op, row.seq, row.call.peer) for row in collectives(traces(runs, fault)[0])]

    assert places("sites") == places("nothing")
    assert places("small_heap") == places("nothing")
    assert all(row.call.site is None for row in collectives(traces(runs, "sites")[0]))
    for row in collectives(traces(runs, "small_heap")[0]):
        assert row.call.site is None or row.call.site.innermost.file == str(FAULTS)


def test_operators_with_unknown_arguments_are_recorded_by_name(runs: Path) -> None:
    rows = collectives(traces(runs, "unknown_operators")[0])
    assert {row.call.op for row in rows} == {row.call.op for row in collectives(traces(runs, "nothing")[0])}
    assert all(row.call.inputs.shapes == () and row.call.root is None for row in rows)


def test_a_small_ring_keeps_the_newest_and_counts_the_others(runs: Path) -> None:
    for whole, kept in zip(traces(runs, "nothing"), traces(runs, "small_ring"), strict=True):
        everything, last = operations(whole), operations(kept)
        assert len(last) + len(kept.marks) == 16
        assert kept.dropped == len(everything) - len(last)
        assert [(row.call.op, row.seq) for row in last] == [(row.call.op, row.seq) for row in everything[-len(last) :]]
        assert kept.progress == whole.progress
        assert [mark.kind for mark in kept.marks][-1:] == [MarkKind.EXIT]


def tiny(folder: Path, *options: str, path: str | None = None) -> jobs.Finished:
    env = None if path is None else {"PYTHONPATH": path}
    job = jobs.run_ranks(TINY, folder, ranks=1, env=env, python=(jobs.PYTHON, *options))
    assert job.status == 4, job.output
    return job


def alone(folder: Path) -> str:
    """A folder with desync's ``sitecustomize.py``, away from its package."""
    copy = folder / "startup"
    copy.mkdir()
    for file in startup_folder().glob("*.py"):
        shutil.copy(file, copy)
    return str(copy)


def without_desync(folder: Path) -> None:
    job = tiny(folder, path=alone(folder))
    assert "desync: None" in job.output
    assert len(job.notes) == 1
    assert "the recorder cannot start" in job.notes[0]
    assert job.traces == {}


def out_of_reach(folder: Path) -> None:
    """``python -I`` reads neither PYTHONPATH nor sitecustomize; the debug level must not be raised without the recorder."""
    job = tiny(folder, "-I")
    assert "desync: None" in job.output
    assert "level: OFF" in job.output
    assert not (folder / "journals").exists()


def another_desync(folder: Path) -> None:
    """A package of the user's that has the same name is what the user gets."""
    theirs = folder / "theirs" / "desync"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("")
    job = tiny(folder, path=f"{startup_folder()}:{theirs.parent}")
    assert len(job.notes) == 1
    assert "another package is called desync" in job.notes[0]


def another_interpreter(folder: Path) -> None:
    """The package need not be on the path of the job's interpreter; a hidden sitecustomize runs all the same."""
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['hidden_ran'] = sys\n")
    job = tiny(folder, path=f"{startup_folder()}:{hidden}")
    assert f"desync: {desync.__file__}" in job.output
    assert "hidden: True" in job.output
    assert "level: DETAIL" in job.output
    trace = job.traces[0]
    assert trace.notes == ()
    assert [jobs.at(row, TINY) for row in operations(trace) if row.call.bucket] == ["backward"]


@pytest.mark.parametrize("surroundings", [without_desync, out_of_reach, another_desync, another_interpreter])
def test_the_job_runs_in_any_surroundings(tmp_path: Path, surroundings: Callable[[Path], None]) -> None:
    assert (ROOT / "desync").is_dir()
    surroundings(tmp_path)
