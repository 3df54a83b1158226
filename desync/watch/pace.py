"""When a running job is worth a diagnosis: reading all journals costs time that may be the job's."""

from __future__ import annotations

from collections.abc import Mapping

from desync.journal.reader import Pulse

QUIET_S = 0.3
"""A rank that records nothing for so long may be stuck."""
MOST_QUIET_S = 1.0
"""However long a job's ordinary pauses are: a proven fault has to be reported within two seconds."""
EVERY_S = 0.5
BACKSTOP_S = 1.5
"""Also a job that seems to move is looked at: one thread may be stuck while another works on."""
SHARE = 2
SHARE_AT_REST = 20
"""A diagnosis that takes t is not repeated within t times this; where nothing is suspected the second holds."""


class Pace:
    """Learns from the pulses how long each rank's ordinary pauses are, and says when to look.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self._records: dict[int, int] = {}
        self._changed: dict[int, float] = {}
        self._pause: dict[int, float] = {}
        self._last_look = float("-inf")
        self._not_before = float("-inf")
        self._suspected = False

    def take(self, pulses: Mapping[int, Pulse], now: float) -> None:
        """Note which ranks have recorded something."""
        for rank, pulse in pulses.items():
            if self._records.get(rank) == pulse.records:
                continue
            if rank in self._records:
                self._pause[rank] = max(self._pause.get(rank, 0.0), now - self._changed[rank])
            self._records[rank] = pulse.records
            self._changed[rank] = now

    def silence(self, now: float) -> float:
        """Seconds since any rank has recorded something."""
        return now - max(self._changed.values(), default=now)

    def is_due(self, now: float, *, urgent: bool) -> bool:
        """Whether to diagnose now; ``urgent``: a rank's process has ended."""
        if now < self._not_before and not (urgent and now - self._last_look >= EVERY_S):
            return False
        if not self._records:
            return False
        return urgent or self._suspected or self._is_quiet(now) or now - self._last_look >= BACKSTOP_S

    def _is_quiet(self, now: float) -> bool:
        return any(now - self._changed[rank] >= self._limit(rank) for rank in self._records)

    def _limit(self, rank: int) -> float:
        return min(MOST_QUIET_S, max(QUIET_S, 1.5 * self._pause.get(rank, 0.0)))

    def looked(self, begun: float, now: float, *, suspected: bool, at_rest: bool = False) -> None:
        """A diagnosis was made; ``suspected``: it found something, or ranks that are awaited.

        ``at_rest``: the fault is known, and all that can happen is that it passes.
        """
        self._last_look = now
        self._suspected = suspected
        wait = (now - begun) * (SHARE if suspected or self._is_quiet(now) else SHARE_AT_REST)
        self._not_before = now + max(BACKSTOP_S if at_rest else EVERY_S, wait)
