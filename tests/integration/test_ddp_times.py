"""What the records say of overlap and tail, beside torch's own logger and torch.profiler on the same steps."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest

from desync.report.ddp_steps import Step, steps
from tests.integration import jobs

pytestmark = pytest.mark.job

PROGRAM = jobs.PROGRAMS / "ddp_times.py"
MEASURED = 10


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> jobs.Finished:
    folder = tmp_path_factory.mktemp("run")
    finished = jobs.run_ranks(PROGRAM, folder, str(folder))
    assert finished.statuses == (0, 0), finished.output
    return finished


def steps_of(job: jobs.Finished, rank: int) -> list[Step]:
    trace = job.traces[rank]
    found = steps(trace, trace.ddp[0], 100)
    assert [step.number for step in found] == list(range(1, MEASURED + 2))
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_they_agree_with_torchs_logger_within_15_percent(job: jobs.Finished, rank: int) -> None:
    said = json.loads((job.folder / f"{rank}.json").read_text())
    measured = steps_of(job, rank)[:MEASURED]

    def mean(name: str) -> float:
        return statistics.mean(getattr(step, name) for step in measured)

    overlap = int(said["avg_backward_compute_comm_overlap_time"])
    communication = int(said["avg_backward_comm_time"])
    assert mean("overlap_ns") == pytest.approx(overlap, rel=0.15)
    assert mean("communication_ns") == pytest.approx(communication, rel=0.15)
    assert mean("tail_ns") == pytest.approx(communication - overlap, rel=0.15)
    assert mean("compute_ns") == pytest.approx(int(said["avg_backward_compute_time"]), rel=0.15)


@pytest.mark.parametrize("rank", [0, 1])
def test_they_agree_with_the_profilers_trace_of_the_same_step(job: jobs.Finished, rank: int) -> None:
    step = steps_of(job, rank)[MEASURED - 1]
    events = json.loads((job.folder / f"{rank}.trace.json").read_text())["traceEvents"]

    def spans(name: str) -> list[tuple[float, float]]:
        found = [event for event in events if event.get("ph") == "X" and event["name"] == name]
        return sorted((event["ts"] * 1e3, (event["ts"] + event["dur"]) * 1e3) for event in found)

    launched = spans("c10d::allreduce_")[0][0]
    ready = spans("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")[-1][1]
    copied = spans("torch.distributed.ddp.reducer::copy_bucket_to_grad")[-1][1]
    assert step.overlap_ns == pytest.approx(ready - launched, rel=0.15)
    assert step.tail_ns == pytest.approx(copied - ready, rel=0.15)

    # A bucket is seen to complete when gloo's thread has got the GIL for it: not before it is over, nor after the backward.
    assert step.timed
    for launch, (start, end) in zip(step.launches, spans("gloo:all_reduce"), strict=True):
        completed = launch.operation.completed or 0
        assert 0.95 * (end - start) <= completed - launch.entered
        assert completed <= step.backward_end


def test_the_module_is_known_with_what_torch_says_of_it(job: jobs.Finished) -> None:
    (module,) = job.traces[0].ddp
    logged: dict[str, Any] = dict(module.torch)

    assert (logged["gradient_as_bucket_view"], logged["bucket_cap_bytes"]) == (0, 5 << 20)
    assert logged["total_parameter_size_bytes"] == 8 * (768 * 768 + 768) * 4
    assert logged["avg_backward_comm_time"] > 0
    assert [len(bucket) for bucket in module.buckets] == [6, 6, 4]
