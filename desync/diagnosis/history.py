"""What a rank usually does next: the order in which it and its peers make their calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby, pairwise

from desync.model import CallSite, Kind, Trace

REACH = 512
"""How many of a rank's newest operations are looked at."""
PEERS = 64
"""How many other ranks are asked."""

Step = tuple[CallSite, str]
"""A call as a step of a program: its line and the group it works on."""


class History:
    """The steps of every rank of a job."""

    def __init__(self, traces: Mapping[int, Trace]) -> None:
        self._traces = traces
        self._steps = lru_cache(maxsize=None)(self._read)
        self._successors = lru_cache(maxsize=None)(self._follow)

    def _read(self, rank: int) -> tuple[Step, ...]:
        table = self._traces[rank].operations
        first = max(0, len(table) - REACH)
        found = []
        for row in range(first, len(table)):
            call = table.calls[table.call[row]]
            if call.kind is not Kind.GROUP and call.site is not None:
                found.append((call.site, table.groups[table.group[row]]))
        return tuple(found)

    def _follow(self, rank: int) -> Mapping[Step, frozenset[Step]]:
        """After each step, the steps that followed; the newest step of all is left out, it is what is in question."""
        steps = self._steps(rank)[:-1]
        found: dict[Step, set[Step]] = {}
        for before, after in pairwise(steps):
            found.setdefault(before, set()).add(after)
        return {step: frozenset(after) for step, after in found.items()}

    def knows(self, rank: int, step: Step) -> bool:
        """Whether a rank has ever made this call."""
        return step in self._steps(rank)

    def times(self, rank: int, step: Step) -> int:
        """How often it came to it; DDP's buckets of one backward are one time."""
        return sum(1 for each, _ in groupby(self._steps(rank)) if each == step)

    def newest(self, rank: int) -> Step | None:
        """What the rank called last."""
        steps = self._steps(rank)
        return steps[-1] if steps else None

    def strayed(self, rank: int) -> bool:
        """Whether the rank's newest call is not what it, or any peer that can be asked, does after the call before it."""
        steps = self._steps(rank)
        if len(steps) < 2:
            return False
        before, newest = steps[-2], steps[-1]
        expected = set(self._successors(rank).get(before, ()))
        own_groups = self._traces[rank].groups
        for peer in list(self._traces)[:PEERS]:
            if peer != rank:
                theirs = self._steps(peer)
                after = {two for one, two in pairwise(theirs) if one == before}
                expected |= {step for step in after if step[1] in own_groups}
        return bool(expected) and newest not in expected
