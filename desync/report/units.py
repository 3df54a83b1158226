"""Durations and sizes with three digits."""

from __future__ import annotations

from desync.report.text import seconds


def duration(value: float | None) -> str:
    """``850 µs``, ``12.3 ms``, ``1.25 s``, ``3 min 20 s``; "not known" for None."""
    if value is None:
        return "not known"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}" if value < 100 else seconds(value)
    return f"{round(value * 1e6)} µs"


def size(value: float | None) -> str:
    """``12.3 MiB``; "not known" for None."""
    if value is None:
        return "not known"
    for unit in ("B", "KiB", "MiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"
