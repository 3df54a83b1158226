"""Ranks whose process the kernel does not let run, seen in /proc whether anybody is known to wait for them or not.

A rank that is stopped in the middle of a collective looks like all others in it: only its state tells it apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from desync.evidence.liveness import stat_fields
from desync.model import Activity, Motion
from desync.watch.activity import WINDOW_NS

STANDING = {b"T": "stopped", b"t": "tracing-stop", b"D": "disk-sleep"}
"""States of /proc/pid/stat in which a process stands still, in the words that psutil has for them."""


@dataclass(frozen=True, slots=True)
class _Standing:
    pid: int
    state: str
    since: int


class StandingRanks:
    """Since when which ranks were found standing at every look."""

    def __init__(self) -> None:
        self._found: dict[int, _Standing] = {}
        self._seen = 0

    def look(self, pids: Mapping[int, int], now: int) -> None:
        """Look at the main threads of these processes, given by rank, at this time (epoch ns)."""
        self._seen = now
        for rank in [*self._found]:
            if rank not in pids:
                del self._found[rank]
        for rank, pid in pids.items():
            fields = stat_fields(pid)
            state = STANDING.get(fields[0]) if fields else None
            if state is None:
                self._found.pop(rank, None)
            elif (known := self._found.get(rank)) is None or (known.pid, known.state) != (pid, state):
                self._found[rank] = _Standing(pid, state, now)

    def activities(self) -> dict[int, Activity]:
        """What can be said of those that have stood for longer than a moment."""
        return {
            rank: Activity(rank, _motion(found), since=found.since, process_state=found.state)
            for rank, found in self._found.items()
            if self._seen - found.since >= WINDOW_NS
        }


def _motion(found: _Standing) -> Motion:
    """A process in disk sleep may be reading all the time: its state alone does not say that it does not move."""
    return Motion.UNKNOWN if found.state == "disk-sleep" else Motion.FROZEN
