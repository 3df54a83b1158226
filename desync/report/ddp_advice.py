"""Plain advice on a DDP module, each piece with what it rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from desync.model import DdpModule, MarkKind, Trace
from desync.report.model import DdpEntry
from desync.report.text import count
from desync.report.units import size

LONG_TAIL = 0.15
"""A tail of more than this share of the step is worth a change."""
SEVERAL = 1.5
"""More backwards than this for each optimizer step mean that gradients are accumulated."""
SMALL_BUCKET = 1 << 20


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the pieces of advice look at."""

    entry: DdpEntry
    module: DdpModule
    trace: Trace
    no_sync: int
    """Forwards inside no_sync that are still in the record."""

    @property
    def accumulated(self) -> float:
        """Backwards for each optimizer step."""
        progress = self.trace.progress
        return progress.backwards / progress.steps if progress.steps else 0.0


def advise(entry: DdpEntry, module: DdpModule, trace: Trace) -> DdpEntry:
    """The entry with its advice, the most costly fault first."""
    forwards = [mark for mark in trace.marks if mark.kind is MarkKind.FORWARD and mark.name == module.name]
    seen = _Seen(entry, module, trace, sum(mark.value == "no_sync" for mark in forwards))
    return replace(entry, advice=tuple(said for rule in _RULES if (said := rule(seen))))


def _set_epoch(seen: _Seen) -> str | None:
    for sampler in seen.trace.samplers:
        if sampler.shuffle and len(sampler.epochs) > 1 and len(set(sampler.epochs)) == 1:
            return (
                f"DistributedSampler.set_epoch() is never called: {len(sampler.epochs)} passes over {sampler.name} began in "
                f"epoch {sampler.epochs[0]}, so every epoch has the same order. Call sampler.set_epoch(epoch) before each pass."
            )
    return None


def _synchronised_needlessly(seen: _Seen) -> str | None:
    if seen.accumulated < SEVERAL or seen.no_sync:
        return None
    return (
        f"{seen.accumulated:.3g} backward passes for each optimizer step, and each of them synchronised: all but the last are "
        "communication for nothing. Run the others, forward included, inside `with model.no_sync():`."
    )


def _loss_scale(seen: _Seen) -> str | None:
    if seen.accumulated < SEVERAL:
        return None
    return (
        f"Gradients are accumulated over {seen.accumulated:.3g} backward passes. Whether the loss is divided by that number "
        "cannot be seen from outside: check it, or the learning rate is in effect multiplied by it."
    )


def _unused(seen: _Seen) -> str | None:
    if not seen.module.find_unused_parameters:
        return None
    unused = seen.module.torch.get("unused_parameter_size")
    if not isinstance(unused, int):
        return None
    if unused:
        return (
            f"find_unused_parameters=True is needed: in the iteration that torch looked at last, parameters of {size(unused)} "
            "had no gradient. Taking them out of the model, or freezing them, would save the search."
        )
    return (
        "find_unused_parameters=True costs a walk over the graph in every iteration, and no unused parameter was seen in those "
        "that torch looked at. If that is always so, leave it out."
    )


def _static(seen: _Seen) -> str | None:
    if seen.module.static_graph or not seen.module.torch.get("can_set_static_graph"):
        return None
    return (
        "The same parameters were used in every iteration that torch looked at: static_graph=True is possible, which needs no "
        "search for unused parameters and allows activation checkpointing."
    )


def _one_bucket(seen: _Seen) -> str | None:
    buckets = seen.entry.buckets
    whole = buckets[0].bytes if buckets else None
    if len(buckets) != 1 or not whole or whole < SMALL_BUCKET:
        return None
    return (
        f"All gradients ({size(whole)}) are in one bucket, so that no communication can begin before the last "
        f"gradient is ready. A bucket_cap_mb of {max(1, round(whole / 2**20 / 4))} would make about four."
    )


def _tail(seen: _Seen) -> str | None:
    times = seen.entry.measured
    if times is None or not times.step_s or times.tail_s is None or times.tail_s < LONG_TAIL * times.step_s:
        return None
    waiting = (times.wait_s or 0.0) > times.tail_s / 2
    share = f"{100 * times.tail_s / times.step_s:.0f} % of the step is communication that no computation hides"
    if waiting:
        return f"{share}, most of it waiting for a rank that comes later: balance the ranks' work before tuning buckets."
    total = sum(bucket.bytes or 0 for bucket in seen.entry.buckets)
    if 0 < total < SMALL_BUCKET:
        return (
            f"{share}: all gradients together are {size(total)}, so that what takes the time is the way there and back. Only "
            "fewer synchronisations help: larger batches, or gradient accumulation inside model.no_sync()."
        )
    return f"{share}. Try other bucket sizes: tools/bucket_sweep.py measures them; or a comm hook that sends fewer bytes."


def _many_small(seen: _Seen) -> str | None:
    sizes = [bucket.bytes for bucket in seen.entry.buckets if bucket.bytes is not None]
    if len(sizes) < 8 or sorted(sizes)[len(sizes) // 2] >= SMALL_BUCKET:
        return None
    return f"{count(len(sizes), 'bucket')}, most below 1 MiB: each has its own latency. A larger bucket_cap_mb makes fewer."


def _bucket_view(seen: _Seen) -> str | None:
    total = seen.module.torch.get("total_parameter_size_bytes")
    if seen.entry.gradient_as_bucket_view is not False or not isinstance(total, int) or total < SMALL_BUCKET:
        return None
    return (
        f"gradient_as_bucket_view=True would let gradients live in the buckets: {size(total)} less memory on each "
        "rank, and no copying back after the all_reduce."
    )


_RULES: tuple[Callable[[_Seen], str | None], ...] = (
    _set_epoch,
    _synchronised_needlessly,
    _tail,
    _one_bucket,
    _many_small,
    _unused,
    _static,
    _bucket_view,
    _loss_scale,
)
