"""How DDP synchronises, seen from the records: buckets, what of the communication hides behind compute, and plain advice."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from desync.model import DdpModule, Evidence, Trace
from desync.report.clocks import Clocks, align
from desync.report.ddp_advice import advise
from desync.report.ddp_steps import Step, steps
from desync.report.model import BucketSpan, DdpBucket, DdpEntry, DdpStep, DdpTimes
from desync.report.text import LINE, NAME, bounded

MAX_RANKS = 32
MAX_STEPS = 64
"""So many of the last steps of so many ranks are looked at."""
MAX_MODULES = 8
MAX_BUCKETS = 512
MAX_NAMES = 24

_BYTES = {
    "float64": 8, "double": 8, "int64": 8, "float32": 4, "float": 4, "int32": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def build_ddp(evidence: Evidence) -> tuple[DdpEntry, ...]:
    """One entry for each DDP module; those of the lowest rank that has any stand for all."""
    first = next((trace for trace in evidence.traces if trace.ddp), None)
    if first is None:
        return ()
    clocks = align(evidence)
    return tuple(_entry(evidence, first, module, clocks) for module in first.ddp[:MAX_MODULES])


def _entry(evidence: Evidence, first: Trace, module: DdpModule, clocks: Clocks) -> DdpEntry:
    traces = _spread([trace for trace in evidence.traces if any(other.name == module.name for other in trace.ddp)])
    found = [step for trace in traces for step in steps(trace, module, MAX_STEPS)]
    settled = [step for step in found if step.number > 2] or found
    measured = _times(settled, clocks, {trace.rank: trace for trace in traces}) if settled else None
    said = module.torch
    entry = DdpEntry(
        name=bounded(module.name, NAME),
        group=bounded(module.group, NAME),
        parameters=len(module.parameters),
        buckets=_buckets(module, settled),
        find_unused_parameters=module.find_unused_parameters,
        static_graph=module.static_graph,
        gradient_as_bucket_view=bool(said["gradient_as_bucket_view"]) if "gradient_as_bucket_view" in said else None,
        bucket_cap_bytes=_whole(said.get("bucket_cap_bytes")),
        steps=len(settled),
        measured=measured,
        torch=_said_by_torch(module),
        picture=_picture(settled, host_waits="nccl" not in (_backend(first, module) or "")),
    )
    return advise(entry, module, first)


def _spread(traces: Sequence[Trace]) -> list[Trace]:
    """At most MAX_RANKS of the traces, evenly spread."""
    stride = max(1, math.ceil(len(traces) / MAX_RANKS))
    return list(traces[::stride])


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _times(found: Sequence[Step], clocks: Clocks, traces: dict[int, Trace]) -> DdpTimes:
    return DdpTimes(
        step_s=_median(_distances(found)),
        forward_s=_median(step.forward_ns for step in found),
        compute_s=_median(step.compute_ns for step in found),
        communication_s=_median(step.communication_ns for step in found),
        overlap_s=_median(step.overlap_ns for step in found),
        tail_s=_median(step.tail_ns for step in found),
        wait_s=_median(_waits(found, clocks, traces)),
    )


def _median(values: Iterable[int]) -> float | None:
    kept = list(values)
    return round(statistics.median(kept) / 1e9, 6) if kept else None


def _distances(found: Sequence[Step]) -> list[int]:
    """From one optimizer step to the next, where nothing was left out between them."""
    pairs = itertools.pairwise(found)
    return [
        after.stepped - before.stepped
        for before, after in pairs
        if before.rank == after.rank and before.stepped and after.stepped and after.number > before.number
    ]


def _waits(found: Sequence[Step], clocks: Clocks, traces: dict[int, Trace]) -> list[int]:
    """How much of each tail was waiting for a rank that had not launched its last bucket yet."""
    latest: dict[tuple[str, int], int] = {}
    mine: list[tuple[tuple[str, int], int, int]] = []
    for step in found:
        offset = clocks.offset(traces[step.rank])
        last = step.launches[-1].operation
        key, at = (last.group, last.seq), step.launches[-1].entered + offset
        latest[key] = max(latest.get(key, 0), at)
        mine.append((key, at, step.tail_ns))
    return [min(tail, latest[key] - at) for key, at, tail in mine]


def _said_by_torch(module: DdpModule) -> DdpTimes | None:
    """The averages of torch's logger; it measures the first ten iterations, and then each hundredth."""
    averages = {key: value for key, value in module.torch.items() if key.startswith("avg_")}
    said = {key: value for key, value in averages.items() if isinstance(value, int) and value > 0}
    if not said:
        return None
    communication = _seconds(said.get("avg_backward_comm_time"))
    overlap = _seconds(said.get("avg_backward_compute_comm_overlap_time"))
    return DdpTimes(
        forward_s=_seconds(said.get("avg_forward_compute_time")),
        compute_s=_seconds(said.get("avg_backward_compute_time")),
        communication_s=communication,
        overlap_s=overlap,
        tail_s=None if communication is None or overlap is None else round(max(0.0, communication - overlap), 6),
    )


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / 1e9, 6)


def _buckets(module: DdpModule, found: Sequence[Step]) -> tuple[DdpBucket, ...]:
    sizes = {launch.index: launch.operation.call.inputs for step in found[-1:] for launch in step.launches}
    made = []
    for index, members in enumerate(module.buckets[:MAX_BUCKETS]):
        tensors = sizes.get(index)
        elements = sum(math.prod(shape) for shape in tensors.shapes) if tensors else None
        dtype = tensors.dtype if tensors else None
        width = _BYTES.get(dtype or "")
        names = [module.parameters[number] for number in members if number < len(module.parameters)]
        made.append(
            DdpBucket(
                index=index,
                parameters=tuple(bounded(name, NAME) for name in names[:MAX_NAMES]),
                count=len(names),
                elements=elements,
                bytes=elements * width if elements is not None and width else None,
                dtype=bounded(dtype, LINE) if dtype else None,
            )
        )
    return tuple(made)


def _backend(trace: Trace, module: DdpModule) -> str | None:
    group = trace.groups.get(module.group)
    return group.backend if group else None


def _picture(found: Sequence[Step], host_waits: bool) -> DdpStep | None:
    """The step nearest to the medians, of those whose buckets were seen to complete if there are any.

    ``host_waits``: backward returns only when all buckets are complete.
    """
    timed = [step for step in found if step.timed] or list(found)
    if not timed:
        return None
    centre = [statistics.median(map(measure, timed)) for measure in _MEASURES]
    chosen = min(timed, key=lambda step: sum(abs(measure(step) - at) for measure, at in zip(_MEASURES, centre, strict=True)))
    return _drawn(chosen, host_waits)


_MEASURES: tuple[Callable[[Step], int], ...] = (
    lambda step: step.forward_ns,
    lambda step: step.overlap_ns,
    lambda step: step.tail_ns,
)


def _drawn(step: Step, host_waits: bool) -> DdpStep:
    start = step.forward.time

    def since(time: int) -> float:
        return round((time - start) / 1e9, 6)

    def ended(time: int) -> float:
        # The backend's thread needs the GIL to say that a bucket is complete, and may get it only after backward.
        return since(min(time, step.backward_end) if host_waits else time)

    return DdpStep(
        rank=step.rank,
        number=step.number,
        forward_end_s=since(step.forward_end),
        backward_start_s=since(step.backward.time),
        compute_end_s=since(step.compute_end),
        backward_end_s=since(step.backward_end),
        optimizer_s=since(step.stepped) if step.stepped else None,
        buckets=tuple(
            BucketSpan(
                launch.index,
                since(launch.entered),
                ended(launch.operation.completed) if step.timed and launch.operation.completed else None,
            )
            for launch in step.launches[:MAX_BUCKETS]
        ),
    )
