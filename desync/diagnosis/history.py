"""What a rank usually does next: the order in which it and its peers make their calls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

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
        self._follows = lru_cache(maxsize=None)(self._pairs)

    def _read(self, rank: int, end: int | None = None) -> tuple[Step, ...]:
        """The steps of a rank, up to and with the row ``end`` of its table."""
        table = self._traces[rank].operations
        stop = len(table) if end is None else end + 1
        found: list[Step] = []
        buckets: set[str] = set()
        for row in range(max(0, stop - REACH), stop):
            call = table.calls[table.call[row]]
            if call.kind is not Kind.COLLECTIVE or call.site is None:
                continue
            step = (call.site, table.groups[table.group[row]])
            # The buckets of one backward come from one line; how many there are is not the order of the program.
            if call.bucket is None or call.bucket in buckets or found[-1:] != [step]:
                found.append(step)
                buckets.clear()
            if call.bucket is not None:
                buckets.add(call.bucket)
        return tuple(found)

    def _pairs(self, rank: int) -> dict[Step, set[Step]]:
        """What a rank did after each of its steps."""
        found: dict[Step, set[Step]] = {}
        for one, two in pairwise(self._steps(rank)):
            found.setdefault(one, set()).add(two)
        return found

    def knows(self, rank: int, step: Step) -> bool:
        """Whether a rank has ever made this call."""
        return step in self._steps(rank)

    def times(self, rank: int, step: Step, at: int | None = None) -> int:
        """How often it came to it, up to row ``at`` of its table (without it, until now)."""
        return self._steps(rank, at).count(step)

    def newest(self, rank: int) -> Step | None:
        """What the rank called last."""
        steps = self._steps(rank)
        return steps[-1] if steps else None

    def strayed(self, rank: int, at: int | None = None) -> bool:
        """Whether a call is not what the rank, or any peer that can be asked, does after the call before it.

        The call is the one in row ``at`` of the rank's table; without it, the rank's newest.  Only peers that are members of
        the groups of the call and of what was expected are asked, for the others leave these out by right; and one peer against
        one rank proves nothing.
        """
        steps = self._steps(rank, at)
        if len(steps) < 2:
            return False
        before, call = steps[-2], steps[-1]
        expected = {after for one, after in pairwise(steps[:-1]) if one == before}
        votes = self._votes(rank, before, {call[1], *(group for _, group in expected)})
        if len(votes) > 1:
            expected |= set().union(*votes)
        return bool(expected) and call not in expected and not any(call in vote for vote in votes)

    def left_out(self, rank: int) -> tuple[Step, ...]:
        """What the rank always did between its last two calls, as it did the last time that it made both; empty if nothing."""
        *past, before, call = self._steps(rank)
        for start in range(len(past) - 1, -1, -1):
            if past[start] == before and call in (between := past[start + 1 :]):
                return tuple(between[: between.index(call)])
        return ()

    def _votes(self, rank: int, before: Step, groups: set[str]) -> list[set[Step]]:
        """What each peer that is a member of the groups did after ``before``, as far as the rank is a member there."""
        own_groups = self._traces[rank].groups
        votes = []
        for peer, trace in list(self._traces.items())[:PEERS]:
            if peer != rank and groups <= trace.groups.keys():
                after = {two for two in self._follows(peer).get(before, ()) if two[1] in own_groups}
                if after:
                    votes.append(after)
        return votes
