"""The compiler makes the same graphs with and without the recorder."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from desync.model import MarkKind
from tests.integration import jobs

pytestmark = pytest.mark.job

PROGRAM = jobs.PROGRAMS / "compiled.py"


def made(job: jobs.Finished) -> dict[str, dict[str, object]]:
    lines = [line for line in job.output.splitlines() if line.startswith("made: ")]
    assert len(lines) == 1, job.output
    parts: dict[str, dict[str, object]] = json.loads(lines[0].removeprefix("made: "))
    return parts


def test_the_compiler_never_meets_the_recorder(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(jobs.run_ranks, PROGRAM, tmp_path, ranks=1, recorder=recorder) for recorder in (True, False)]
        watched, plain = (run.result() for run in runs)
    assert (watched.status, plain.status) == (0, 0), watched.output + plain.output
    assert made(watched) == made(plain)
    assert made(plain)["one_graph"]["unique_graphs"] == 1
    # Said of frames that it tries to compile and cannot.
    assert "desync" not in watched.output
    trace = watched.traces[0]
    assert trace.notes == ()
    assert len([row for row in jobs.operations(trace) if row.call.bucket]) == 3 + 3
    # A step or a mark inside of compiled code is not seen: seeing it would change the graphs.
    assert (trace.progress.forwards, trace.progress.backwards, trace.progress.batches) == (6, 6, 3)
    assert [mark.name for mark in jobs.marks(trace, MarkKind.USER)] == ["outside"]
