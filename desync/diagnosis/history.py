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
        self._ever_after = lru_cache(maxsize=None)(self._read_pairs)
        self._ever = lru_cache(maxsize=None)(self._all_steps)
        self.known_by = lru_cache(maxsize=None)(self._known_by)

    def _read(self, rank: int, end: int | None = None, reach: int | None = REACH) -> tuple[Step, ...]:
        """The steps of a rank, up to and with the row ``end`` of its table; all of them without a ``reach``."""
        table = self._traces[rank].operations
        stop = len(table) if end is None else end + 1
        reach = stop if reach is None else reach
        found: list[Step] = []
        buckets: set[str] = set()
        for row in range(max(0, stop - reach), stop):
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

    def _all_steps(self, rank: int) -> frozenset[Step]:
        """All steps that a rank ever made, however long ago."""
        table = self._traces[rank].operations
        used = set(zip(table.call, table.group, strict=True))
        calls = ((table.calls[call], table.groups[group]) for call, group in used)
        return frozenset((call.site, group) for call, group in calls if call.kind is Kind.COLLECTIVE and call.site is not None)

    def _known_by(self, step: Step) -> frozenset[int]:
        """The ranks that have ever made this call."""
        return frozenset(rank for rank in self._traces if step in self._ever(rank))

    def _pairs(self, rank: int) -> dict[Step, set[Step]]:
        """What a rank did after each of its steps."""
        found: dict[Step, set[Step]] = {}
        for one, two in pairwise(self._steps(rank)):
            found.setdefault(one, set()).add(two)
        return found

    def knows(self, rank: int, step: Step) -> bool:
        """Whether a rank has ever made this call."""
        return step in self._ever(rank)

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
        groups = frozenset({call[1], *(group for _, group in expected)})
        votes = self._votes(rank, before, groups)
        if len(votes) > 1:
            expected |= set().union(*votes)
        if not expected or call in expected or any(call in vote for vote in votes):
            return False
        # What is rare lies further back than the newest steps.
        known = (before, call) in self._ever_after(rank, at)
        return not known and not any((before, call) in self._ever_after(peer, None) for peer in self._asked(rank, groups))

    def _read_pairs(self, rank: int, at: int | None) -> frozenset[tuple[Step, Step]]:
        """All that a rank ever did after each of its steps, however long ago, but for the newest."""
        return frozenset(pairwise(self._read(rank, at, reach=None)[:-1]))

    def left_out(self, rank: int) -> tuple[Step, ...]:
        """What the rank always did between its last two calls, whenever it made both; empty if nothing."""
        *past, before, call = self._steps(rank)
        between: list[tuple[Step, ...]] = []
        for start, step in enumerate(past):
            end = next((place for place in range(start + 1, len(past)) if past[place] in (before, call)), None)
            if step == before and end is not None and past[end] == call:
                between.append(tuple(past[start + 1 : end]))
        return tuple(step for step in between[-1] if all(step in each for each in between)) if between else ()

    def _asked(self, rank: int, groups: frozenset[str]) -> list[int]:
        """The peers of a rank that are members of the groups."""
        traces = list(self._traces.items())[:PEERS]
        return [peer for peer, trace in traces if peer != rank and groups <= trace.groups.keys()]

    def _votes(self, rank: int, before: Step, groups: frozenset[str]) -> list[set[Step]]:
        """What each peer that is asked did after ``before``, as far as the rank is a member there."""
        own_groups = self._traces[rank].groups
        follows = (self._follows(peer).get(before, ()) for peer in self._asked(rank, groups))
        votes = ({two for two in after if two[1] in own_groups} for after in follows)
        return [after for after in votes if after]
