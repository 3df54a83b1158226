"""``--format ddp``: how DDP synchronises, as text with the classic picture: backward above, buckets below."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from desync.report.model import DdpBucket, DdpEntry, DdpStep, DdpTimes, Report
from desync.report.text import clean, count
from desync.report.units import duration, size

STEP_ROWS = (
    ("step", "step_s", "from one optimizer step to the next"),
    ("forward", "forward_s", ""),
    ("backward", "compute_s", "end of forward until the last bucket was launched"),
    ("communication", "communication_s", "first bucket launched until backward returned"),
    ("  hidden", "overlap_s", "behind backward"),
    ("  tail", "tail_s", "hidden by nothing, copying back included"),
    ("    waiting", "wait_s", "for ranks that came later"),
)
"""What is told of a step: a label, the field of :class:`DdpTimes`, and what it means."""
WIDTH = 72
"""Of the picture, in characters."""
MAX_DRAWN = 16
MAX_NAMES = 4


def render_ddp(report: Report) -> str:
    """All modules of the report; ends with a line end."""
    if not report.ddp:
        return "No DistributedDataParallel module was recorded.\n"
    return "\n".join("\n".join(_module(entry)) + "\n" for entry in report.ddp)


def _module(entry: DdpEntry) -> Iterator[str]:
    sizes = f"{count(entry.parameters, 'parameter')} in {count(len(entry.buckets), 'bucket')}"
    yield f"{clean(entry.name)}: {sizes}, group {clean(entry.group)}"
    yield f"  {', '.join(_settings(entry))}"
    yield ""
    if entry.picture is not None:
        yield f"One step (rank {entry.picture.rank}, backward {entry.picture.number})"
        yield from _picture(entry.picture)
        yield ""
    yield from _times(entry)
    yield "Buckets, in the order of their launch"
    yield from (f"  {_bucket(bucket)}" for bucket in entry.buckets[:MAX_DRAWN])
    if len(entry.buckets) > MAX_DRAWN:
        yield f"  … {len(entry.buckets) - MAX_DRAWN} more in report.json"
    if entry.advice:
        yield ""
        yield "Advice"
        for line in entry.advice:
            yield from textwrap.wrap(clean(line, 600), 100, initial_indent="  - ", subsequent_indent="    ")


def _settings(entry: DdpEntry) -> list[str]:
    flags = {
        "find_unused_parameters": entry.find_unused_parameters,
        "static_graph": entry.static_graph,
        "gradient_as_bucket_view": entry.gradient_as_bucket_view,
    }
    said = [f"{name}={value}" for name, value in flags.items() if value is not None]
    return [*said, f"bucket_cap_mb={entry.bucket_cap_bytes / 2**20:g}"] if entry.bucket_cap_bytes else said


def _bucket(bucket: DdpBucket) -> str:
    names = ", ".join(clean(name, 80) for name in bucket.parameters[:MAX_NAMES])
    more = f", … {bucket.count - MAX_NAMES} more" if bucket.count > MAX_NAMES else ""
    return f"{bucket.index:>3}  {size(bucket.bytes):>10}  {names}{more}"


def _picture(step: DdpStep) -> Iterator[str]:
    """Time runs to the right; each line is one bar."""
    end = max(step.backward_end_s, step.optimizer_s or 0.0, *(span.completed_s or 0.0 for span in step.buckets)) or 1.0

    def bar(start: float, stop: float, sign: str) -> str:
        first = round(start / end * WIDTH)
        return " " * first + sign * max(1, round(stop / end * WIDTH) - first)

    def line(label: str, drawn: str, aside: str = "") -> str:
        return f"  {label:<10} {drawn:<{WIDTH}} {aside}".rstrip()

    yield line("forward", bar(0.0, step.forward_end_s, "f"), duration(step.forward_end_s))
    computed = step.compute_end_s - step.backward_start_s
    yield line("backward", bar(step.backward_start_s, step.compute_end_s, "b"), duration(computed))
    for span in step.buckets[:MAX_DRAWN]:
        known = span.completed_s is not None
        stop = span.completed_s if span.completed_s is not None else step.backward_end_s
        aside = duration(stop - span.launched_s) if known else "end not seen"
        yield line(f"bucket {span.index}", bar(span.launched_s, stop, "=" if known else "-"), aside)
    yield line("tail", bar(step.compute_end_s, step.backward_end_s, "~"), duration(step.backward_end_s - step.compute_end_s))
    if step.optimizer_s is not None:
        yield line("optimizer", bar(step.optimizer_s, step.optimizer_s, "|"), f"stepped at {duration(step.optimizer_s)}")


def _times(entry: DdpEntry) -> Iterator[str]:
    """The medians beside what torch says itself."""
    if entry.measured is None:
        return
    yield f"Medians of {count(entry.steps, 'step')}, and torch's own averages (_get_ddp_logging_data)"
    yield f"  {'':<16}{'measured':>10}  {'torch':>10}"
    for label, name, aside in STEP_ROWS:
        ours, theirs = getattr(entry.measured, name), getattr(entry.torch or DdpTimes(), name)
        if ours is not None or theirs is not None:
            yield f"  {label:<16}{duration(ours):>10}  {duration(theirs) if theirs is not None else '':>10}  {aside}".rstrip()
    yield f"  {hidden_share(entry.measured)}"
    yield ""


def hidden_share(times: DdpTimes) -> str:
    """How much of the communication hides behind compute, in words."""
    if not times.communication_s or times.overlap_s is None:
        return "How much of the communication is hidden is not known."
    share = 100 * times.overlap_s / times.communication_s
    return f"{share:.0f} % of the communication hides behind backward."
