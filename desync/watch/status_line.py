"""What the watcher itself says to the user while the job runs: single lines, and a status line where there is a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping

from desync.journal.reader import Pulse
from desync.report.text import clean, seconds

EVERY_S = 0.5
_CLEAR = "\r\x1b[K"


class Voice:
    """Writes to standard error; a terminal that is gone is no fault."""

    def __init__(self, status_line: bool) -> None:
        self.status_line = status_line
        self._shown = False
        self._next = 0.0
        self._begun = time.monotonic()

    def say(self, text: str, limit: int = 400) -> None:
        """One line, marked as ours; foreign text in it is made harmless."""
        self.clear()
        self._write(f"desync: {clean(text, limit)}\n")

    def is_due(self) -> bool:
        """Whether the status line is wanted and old enough to be refreshed."""
        return self.status_line and time.monotonic() >= self._next

    def status(self, pulses: Mapping[int, Pulse], operation: str | None, free: bool) -> None:
        """Refresh the status line; ``free``: the cursor stands at the beginning of a line."""
        now = time.monotonic()
        if not free:
            return
        self._next = now + EVERY_S
        self._write(f"{_CLEAR}{clean(self._words(pulses, operation, now), 79)}\r")
        self._shown = True

    def _words(self, pulses: Mapping[int, Pulse], operation: str | None, now: float) -> str:
        ran = seconds(now - self._begun)
        if not pulses:
            return f"desync: {ran}, no rank yet"
        steps = [pulse.steps for pulse in pulses.values()]
        least, most = min(steps), max(steps)
        where = f"step {most}" if least == most else f"steps {least} to {most}"
        last = f", last {operation}" if operation else ""
        return f"desync: {ran}, {len(pulses)} rank{'s' if len(pulses) > 1 else ''}, {where}{last}"

    def clear(self) -> None:
        """Take the status line away."""
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
