"""Data loaders: every batch and the end of every pass is marked, and no child of a rank writes for it."""

from __future__ import annotations

import pytest

from desync.model import MarkKind
from tests.integration import jobs

pytestmark = pytest.mark.job

PROGRAM = jobs.PROGRAMS / "loaders.py"
PASSES = {"plain": (3, 3), "stream": (3,), "forked": (2,), "spawned": (4, 4)}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> jobs.Finished:
    folder = tmp_path_factory.mktemp("run")
    finished = jobs.run_ranks(PROGRAM, folder, str(folder))
    assert finished.statuses == (0, 0), finished.output
    assert [trace.notes for trace in finished.traces.values()] == [(), ()]
    return finished


def test_batches_and_the_ends_of_passes_are_marked(job: jobs.Finished) -> None:
    trace = job.traces[0]
    expected: list[tuple[MarkKind, object]] = []
    for name, lengths in PASSES.items():
        for number, batches in enumerate(lengths):
            expected += [(MarkKind.USER, (name, number))]
            expected += [(MarkKind.FETCH, position + 1) for position in range(batches + 1)]
            expected += [(MarkKind.EXHAUSTED, batches)]
    seen: list[tuple[MarkKind, object]] = [
        (mark.kind, (mark.name, mark.value) if mark.kind is MarkKind.USER else mark.value)
        for mark in jobs.marks(trace, MarkKind.USER, MarkKind.FETCH, MarkKind.EXHAUSTED)
    ]
    assert seen[:-2] == expected
    assert seen[-2:] == [(MarkKind.FETCH, 1), (MarkKind.FETCH, 2)]
    fetches = jobs.marks(trace, MarkKind.FETCH)
    assert all(mark.left is not None and mark.left >= mark.time for mark in fetches)
    assert [jobs.at(mark, PROGRAM) for mark in fetches[:-2]] == ["read"] * (len(fetches) - 2)
    assert jobs.at(fetches[-1], PROGRAM) == "left"
    assert {mark.name for mark in fetches} == {"Numbers", "Stream"}


def test_progress_counts_what_the_marks_say(job: jobs.Finished) -> None:
    progress = job.traces[0].progress
    passes = tuple(batches for lengths in PASSES.values() for batches in lengths)
    assert progress.passes == passes
    assert progress.batches == sum(passes) + 2
    assert not progress.loader_exhausted  # the last pass was left in the middle


def test_children_of_a_rank_write_neither_for_it_nor_for_themselves(job: jobs.Finished) -> None:
    assert len(list(job.folder.glob("worker-*"))) == 2 * (2 + 1)
    assert len(list((job.folder / "journals").iterdir())) == 2
    for trace in job.traces.values():
        assert trace.progress.backwards == 0
        assert {mark.name for mark in jobs.marks(trace, MarkKind.USER)} == set(PASSES)
        assert [row.call.op for row in jobs.operations(trace)] == [
            "init_process_group",
            "new_group",
            "barrier",
            "destroy_process_group",
        ]
        assert len(jobs.marks(trace, MarkKind.EXIT)) == 1
        assert trace.exit is not None
        assert trace.exit.code is None
    stacks = list((job.folder / "stacks").iterdir())
    assert [path.read_text() for path in stacks] == ["", ""]
