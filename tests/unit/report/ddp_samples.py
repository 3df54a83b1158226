"""A DDP training made by hand, of which every duration is known."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from desync.model import (
    Call,
    DdpModule,
    Evidence,
    Exit,
    Group,
    Kind,
    Mark,
    MarkKind,
    OperationTable,
    Progress,
    Sampler,
    Tensors,
    Trace,
)
from tests.unit.report.report_samples import LOOP, MS, START, Sample, diagnosis, job

STEP = 40 * MS
FORWARD = (0, 8 * MS)
BACKWARD = (9 * MS, 31 * MS)
LAUNCHES = (15 * MS, 20 * MS)
"""When the two buckets are launched; the call returns 0.1 ms later."""
COMPLETIONS = (25 * MS, 30 * MS)
STEPPED = 33 * MS
NAMES = ("fc.bias", "fc.weight", "emb.weight")
TORCH: Mapping[str, int | str] = {
    "gradient_as_bucket_view": 0,
    "bucket_cap_bytes": 25 << 20,
    "total_parameter_size_bytes": 3 << 20,
    "unused_parameter_size": 0,
    "avg_forward_compute_time": 8_100_000,
    "avg_backward_compute_time": 12_200_000,
    "avg_backward_comm_time": 16_100_000,
    "avg_backward_compute_comm_overlap_time": 5_200_000,
}


def bucket(number: int, elements: int) -> Call:
    inputs = Tensors(((elements,),), ("float32",))
    names = NAMES[:2] if number == 0 else NAMES[2:]
    label = f"DDP bucket {number}: {', '.join(names)}"
    return Call("all_reduce", Kind.COLLECTIVE, inputs=inputs, reduce_op="sum", is_async=True, site=LOOP, bucket=label)


CALLS = (bucket(0, 1 << 18), bucket(1, 1 << 19))


def training(
    ranks: int = 2,
    count: int = 12,
    *,
    late_ns: int = 0,
    timed: bool = True,
    backwards_per_step: int = 1,
    no_sync: int = 0,
    module: Mapping[str, object] | None = None,
    torch: Mapping[str, int | str] = TORCH,
    epochs: tuple[int, ...] = (0, 1, 2),
    skew: Mapping[int, int] | None = None,
) -> Evidence:
    """A job; the last rank is ``late_ns`` later in everything, and ``skew`` says how wrong each rank's own clock is."""
    options: dict[str, object] = {"find_unused_parameters": False, "static_graph": False, **(module or {})}
    made = []
    for rank in range(ranks):
        shift = (late_ns if rank == ranks - 1 else 0) + (skew or {}).get(rank, 0)
        marks: list[Mark] = []
        rows: list[tuple[int, int, int, int]] = []
        for number in range(count):
            base = START + number * STEP + shift
            plain = no_sync and number % (no_sync + 1) != no_sync
            marks += _marks(base, timed, sync=not plain, step=(number + 1) % backwards_per_step == 0)
            if not plain:
                done = COMPLETIONS if timed else (BACKWARD[1], BACKWARD[1])
                waited = 0 if shift or not late_ns else late_ns
                for call, launched in enumerate(LAUNCHES):
                    rows.append((call, base + launched, base + launched + MS // 10, base + done[call] + waited))
        made.append(
            Trace(
                rank=rank,
                operations=_table(rows),
                marks=tuple(marks),
                groups={"default_pg": Group("default_pg", tuple(range(ranks)), "default_pg", "gloo")},
                progress=Progress(count, count, count, count // backwards_per_step),
                exit=Exit(START + count * STEP, 0, True),
                ddp=(DdpModule("Net", "default_pg", NAMES, ((0, 1), (2,)), torch=torch, **options),),  # type: ignore[arg-type]
                samplers=(Sampler("Examples", True, epochs),),
                pid=4310 + rank,
                node=f"gpu-{rank}" if skew else "gpu-0",
            )
        )
    return Evidence(job(ranks, exit_code=0, ended=START + count * STEP), tuple(made), ended=True)


def _marks(base: int, timed: bool, *, sync: bool, step: bool) -> list[Mark]:
    forward = Mark(MarkKind.FORWARD, base + FORWARD[0], base + FORWARD[1], "Net", "sync" if sync else "no_sync", site=LOOP)
    backward = Mark(MarkKind.BACKWARD, base + BACKWARD[0], base + BACKWARD[1], value=int(timed), site=LOOP)
    return [forward, backward, *([Mark(MarkKind.STEP, base + STEPPED)] if step else [])]


def _table(rows: list[tuple[int, int, int, int]]) -> OperationTable:
    zeros = [0] * len(rows)
    return OperationTable(
        calls=CALLS,
        groups=("default_pg",),
        call=array("q", [row[0] for row in rows]),
        group=array("q", zeros),
        seq=array("q", range(1, len(rows) + 1)),
        thread=array("q", [1] * len(rows)),
        entered=array("q", [row[1] for row in rows]),
        returned=array("q", [row[2] for row in rows]),
        completed=array("q", [row[3] for row in rows]),
    )


def ddp_training() -> Sample:
    """As a sample for the kept renderings."""
    return Sample(training(), diagnosis([], {}))
