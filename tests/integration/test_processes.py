"""Ranks that are not what a launcher starts once: spawned, forked, and restarted ones."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from desync.journal.reader import JournalReader
from desync.model import Failure, MarkKind, Trace
from tests.integration import jobs

pytestmark = pytest.mark.job

SPAWNED = jobs.PROGRAMS / "spawned.py"
RESTARTED = jobs.PROGRAMS / "restarted.py"


def failure(trace: Trace) -> Failure:
    """The only exception of a trace."""
    found = jobs.marks(trace, MarkKind.EXCEPTION)
    assert len(found) == 1, found
    assert found[0].failure is not None
    return found[0].failure


def test_spawned_ranks_are_known_at_init_and_their_exceptions_marked(tmp_path: Path) -> None:
    job = jobs.run_alone(SPAWNED, tmp_path, "spawn", str(tmp_path))
    assert job.status == 1, job.output
    assert "ValueError: the second rank gives up" in job.output
    assert sorted(job.traces) == [0, 1]
    assert {trace.world_size for trace in job.traces.values()} == {2}
    # rank 0 was ended by SIGTERM, and its stacks at that moment were kept.
    waiting, raised = job.traces[0], job.traces[1]
    last = jobs.operations(waiting)[-1]
    assert (jobs.at(last, SPAWNED), last.call.op, last.pending) == ("all_reduce", "all_reduce", False)
    assert waiting.exit is None
    line = jobs.line_of(SPAWNED, "pause")
    left = tmp_path / "stacks" / f"a0.{socket.gethostname()}.{waiting.pid}.fault"
    assert f'"{SPAWNED}", line {line} in one_raises' in left.read_text()
    held = failure(raised)
    assert (held.type, held.message) == ("ValueError", "the second rank gives up")
    assert (held.frames[0].function, held.frames[0].line) == ("one_raises", jobs.line_of(SPAWNED, "raise"))
    assert raised.exit is not None
    assert raised.exit.code == 1
    assert len(list((tmp_path / "journals").glob("*.journal"))) == 2


def test_forked_ranks_of_a_process_that_was_a_rank_have_journals_of_their_own(tmp_path: Path) -> None:
    job = jobs.run_alone(SPAWNED, tmp_path, "fork", str(tmp_path), read=False)
    assert job.status == 0, job.output
    traces = [trace for path in (tmp_path / "journals").glob("*.journal") if (trace := JournalReader(str(path)).trace())]
    rows = {
        (trace.rank, trace.world_size): [(row.call.op, jobs.at(row, SPAWNED)) for row in jobs.operations(trace)]
        for trace in traces
    }
    around = [("init_process_group", None), ("destroy_process_group", None)]
    assert {key: [row for row in seen if row not in around] for key, seen in rows.items()} == {
        (0, 1): [("all_reduce", "parent")],
        (0, 2): [("all_reduce", "child")],
        (1, 2): [("all_reduce", "child")],
    }
    assert all(trace.notes == () and len(jobs.operations(trace)) == 3 for trace in traces)
    (raised,) = [trace for trace in traces if jobs.marks(trace, MarkKind.EXCEPTION)]
    assert (raised.rank, failure(raised).type, failure(raised).uncaught) == (1, "LookupError", True)
    assert failure(raised).frames[0].line == jobs.line_of(SPAWNED, "process")
    assert raised.exit is not None
    assert raised.exit.code == 1


def test_each_attempt_of_an_elastic_job_has_its_own_journals(tmp_path: Path) -> None:
    job = jobs.torchrun(RESTARTED, tmp_path, options=("--max-restarts", "1"))
    assert job.status == 0, job.output
    first, second = jobs.read_traces(tmp_path, 0), jobs.read_traces(tmp_path, 1)
    assert sorted(first) == sorted(second) == [0, 1]
    pids = {trace.pid for trace in (*first.values(), *second.values())}
    assert len(pids) == 4
    for elements, attempt in ((2, first), (3, second)):
        reduced = [row for trace in attempt.values() for row in jobs.operations(trace) if row.call.op == "all_reduce"]
        assert [row.call.inputs.shapes for row in reduced] == [((elements,),)] * 2
    raised = failure(first[1])
    assert (raised.type, raised.uncaught, raised.out_of_memory) == ("RuntimeError", True, True)
    exited = first[1].exit
    assert exited is not None
    assert exited.code == 1
    assert jobs.at(jobs.marks(first[1], MarkKind.EXCEPTION)[0], RESTARTED) == "raise"
