"""What the records say of overlap and tail, beside torch's own logger and torch.profiler on the same steps."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import pytest

from desync.model import Evidence, Job
from desync.report.ddp import build_ddp
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


class Profiled:
    """One backward in the profiler's trace; times in nanoseconds."""

    def __init__(self, events: list[dict[str, Any]], start: float, end: float) -> None:
        self._events = [event for event in events if start <= event["ts"] * 1e3 <= end]

    def spans(self, name: str) -> list[tuple[float, float]]:
        found = [event for event in self._events if event["name"] == name]
        return sorted((event["ts"] * 1e3, (event["ts"] + event["dur"]) * 1e3) for event in found)

    @property
    def ready(self) -> float:
        """When the last gradient had been accumulated."""
        return self.spans("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")[-1][1]

    @property
    def overlap_ns(self) -> float:
        return self.ready - self.spans("c10d::allreduce_")[0][0]

    @property
    def tail_ns(self) -> float:
        return self.spans("torch.distributed.ddp.reducer::copy_bucket_to_grad")[-1][1] - self.ready


def profiled(job: jobs.Finished, rank: int) -> list[Profiled]:
    """The backwards in the profiler's trace, in order."""
    content = json.loads((job.folder / f"{rank}.trace.json").read_text())["traceEvents"]
    events = [event for event in content if event.get("ph") == "X"]
    return [Profiled(events, *span) for span in Profiled(events, 0, math.inf).spans("the backward")]


@pytest.mark.parametrize("rank", [0, 1])
def test_they_agree_with_the_profilers_trace_of_the_same_steps(job: jobs.Finished, rank: int) -> None:
    seen = profiled(job, rank)
    same = steps_of(job, rank)[MEASURED - len(seen) : MEASURED]
    assert len(seen) == len(same) == 5

    # A process that loses the processor between the two clocks' readings spoils one step, and not the median.
    for name in ("overlap_ns", "tail_ns"):
        ratios = [getattr(ours, name) / getattr(theirs, name) for ours, theirs in zip(same, seen, strict=True)]
        assert statistics.median(ratios) == pytest.approx(1, abs=0.15), name

    # A bucket is seen to complete when gloo's thread has got the GIL for it: a little late.  The profiler's span ends after
    # that, so that a thread that loses the processor in between makes it the longer one.
    shares = []
    for ours, theirs in zip(same, seen, strict=True):
        assert ours.timed
        for launch, (start, end) in zip(ours.launches, theirs.spans("gloo:all_reduce"), strict=True):
            assert launch.operation.completed is not None
            shares.append((launch.operation.completed - launch.entered) / (end - start))
    assert statistics.median(shares) >= 0.95


def test_the_module_is_known_with_what_torch_says_of_it(job: jobs.Finished) -> None:
    (module,) = job.traces[0].ddp
    logged: dict[str, Any] = dict(module.torch)

    assert (logged["gradient_as_bucket_view"], logged["bucket_cap_bytes"]) == (0, 5 << 20)
    assert logged["total_parameter_size_bytes"] == 8 * (768 * 768 + 768) * 4
    assert logged["avg_backward_comm_time"] > 0
    assert [len(bucket) for bucket in module.buckets] == [6, 6, 4]


def test_the_epochs_of_samplers_are_known(job: jobs.Finished) -> None:
    for trace in job.traces.values():
        (sampler,) = trace.samplers
        assert (sampler.name, sampler.shuffle, sampler.epochs) == ("TensorDataset", True, (0, 0, 0))


def test_the_report_says_all_of_it(job: jobs.Finished) -> None:
    (entry,) = build_ddp(Evidence(Job(world_size=2), tuple(job.traces.values())))

    assert entry.torch is not None
    assert entry.measured is not None
    assert entry.picture is not None
    assert len(entry.picture.buckets) == 3
    assert all(span.completed_s is not None for span in entry.picture.buckets)
    assert "set_epoch() is never called" in entry.advice[0]
