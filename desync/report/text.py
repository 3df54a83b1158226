"""Words for people: rank sets, places, durations; and foreign text made harmless."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence

from desync.model import Frame

SENTENCE = 1000
LINE = 400
NAME = 120
"""Longest foreign texts that are kept, in characters."""


def bounded(text: str, limit: int) -> str:
    """The text, cut to ``limit`` characters; the cut is visible."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clean(text: str, limit: int = LINE) -> str:
    """Foreign text as one line that a terminal cannot mistake for commands.

    White space and line ends become single spaces; control characters, escape sequences, bidirectional controls, lone
    surrogates and everything else that is not printable become visible escapes.
    """
    flat = " ".join(text[: 8 * limit].split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in bounded(flat, limit))


def ranges(ranks: Iterable[int]) -> list[str]:
    """Ranks as ranges: 0, 1, 2, 4 gives ["0-2", "4"]."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def rank_set(ranks: Iterable[int], limit: int = 24) -> str:
    """Ranks as ``0-2,4-63``; a set that does not fit is cut and counted: ``1,3,5,… (32)``."""
    known = sorted(set(ranks))
    parts = ranges(known)
    whole = ",".join(parts)
    if len(whole) <= limit:
        return whole
    tail = f",… ({len(known)})"
    kept = parts[0]
    for part in parts[1:]:
        if len(kept) + 1 + len(part) + len(tail) > limit:
            break
        kept += f",{part}"
    return kept + tail


def ranks_phrase(ranks: Iterable[int], limit: int = 40) -> str:
    """``rank 2`` or ``ranks 0-1,3``."""
    known = set(ranks)
    return f"{'rank' if len(known) == 1 else 'ranks'} {rank_set(known, limit)}"


def place(frame: Frame, base: str | None = None, limit: int = 48) -> str:
    """``train.py:42 in main``: the file relative to ``base`` where it lies below it; a long path keeps its end."""
    line = f":{frame.line}" if frame.line > 0 else ""
    return f"{short_path(frame.file, base, limit)}{line} in {clean(frame.function, 60)}"


def short_path(path: str, base: str | None = None, limit: int = 48) -> str:
    """A file's path as people call it, at most about ``limit`` characters."""
    shown = clean(path, 1000)
    if base and shown.startswith(base.rstrip(os.sep) + os.sep):
        shown = shown[len(base.rstrip(os.sep)) + 1 :]
    marker = shown.rfind("-packages/")
    if marker >= 0:
        shown = shown[marker + len("-packages/") :]
    if len(shown) <= limit:
        return shown
    parts = shown.split("/")
    kept = parts[-1]
    for part in reversed(parts[:-1]):
        if len(kept) + len(part) + 3 > limit:
            break
        kept = f"{part}/{kept}"
    return f"…/{kept}" if len(kept) <= limit else f"…{kept[-limit:]}"


def shapes(values: Sequence[Sequence[int]] | None) -> str:
    """``[20]`` or ``[4,8] +2`` (two more tensors)."""
    if not values:
        return ""
    first = values[0]
    inner = ",".join(map(str, first[:6])) + (",…" if len(first) > 6 else "")
    return f"[{inner}]" + (f" +{len(values) - 1}" if len(values) > 1 else "")


def exit_phrase(code: int | None) -> str:
    """``exited 1``, ``killed by SIGKILL``, or ``exited`` if the status is not known."""
    if code is None:
        return "exited"
    if code >= 0:
        return f"exited {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def seconds(value: float) -> str:
    """``0.8 s``, ``42 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def count(number: int, noun: str) -> str:
    """``1 rank``, ``4 ranks``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
