"""The classic picture of one step as shapes: forward and backward above, buckets below, on one axis of time."""

from __future__ import annotations

from dataclasses import dataclass

from desync.report.model import DdpStep
from desync.report.units import duration

WIDTH, LEFT, ROW, BAR = 900, 96, 26, 18
MAX_BUCKETS = 24


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its row's label, place and width in pixels, its kind (for the colour) and what stands beside it."""

    label: str
    y: int
    x: float
    width: float
    kind: str
    aside: str


@dataclass(frozen=True, slots=True)
class Line:
    """A vertical line with a name."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class StepPicture:
    """The whole picture and its size in pixels."""

    bars: tuple[Bar, ...]
    lines: tuple[Line, ...]
    width: int
    height: int
    left_out: int


def draw(step: DdpStep) -> StepPicture:
    """The picture of a step; more than MAX_BUCKETS buckets are cut."""
    ends = [span.completed_s for span in step.buckets if span.completed_s is not None]
    end = max(step.backward_end_s, step.optimizer_s or 0.0, *ends, 1e-9) if ends else max(step.backward_end_s, 1e-9)
    end = max(end, step.optimizer_s or 0.0)
    scale = (WIDTH - LEFT - 120) / end
    bars: list[Bar] = []

    def add(label: str, start: float, stop: float, kind: str, aside: str = "") -> None:
        width = max(1.5, (stop - start) * scale)
        y = 8 + len({bar.y for bar in bars}) * ROW
        bars.append(Bar(label, y, round(LEFT + start * scale, 1), round(width, 1), kind, aside or duration(stop - start)))

    add("forward", 0.0, step.forward_end_s, "forward")
    add("backward", step.backward_start_s, step.compute_end_s, "backward")
    for span in step.buckets[:MAX_BUCKETS]:
        seen = span.completed_s is not None
        stop = span.completed_s if span.completed_s is not None else step.backward_end_s
        add(f"bucket {span.index}", span.launched_s, stop, "bucket" if seen else "unseen", "" if seen else "end not seen")
    add("tail", step.compute_end_s, step.backward_end_s, "tail")
    lines = [Line(round(LEFT + step.compute_end_s * scale, 1), "last gradient ready")]
    if step.optimizer_s is not None:
        lines.append(Line(round(LEFT + step.optimizer_s * scale, 1), "optimizer stepped"))
    height = bars[-1].y + ROW + 22
    return StepPicture(tuple(bars), tuple(lines), WIDTH, height, max(0, len(step.buckets) - MAX_BUCKETS))
