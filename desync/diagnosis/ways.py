"""Whether a rank went on as it always did: its newest steps against what followed the same steps before, p2p included.

A rank that is only held up by others repeats itself up to the call in which it is held.  One that left a call out, in a turn
of a loop that it has gone round before, makes a known call after a known call that it never made after it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from desync.model import Call, CallSite, Kind, Trace

REACH = 2048
"""How many of a rank's newest operations are looked at."""
WINDOW = 64
"""How many steps back something may have been left out."""
KNOWN = 2
"""So often must a step have been made before to be known."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call as a step of a program."""

    op: str
    kind: Kind
    group: str
    site: CallSite | None
    peer: int | None = None

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send or a recv."""
        return self.kind is Kind.P2P


def step_of(call: Call, group: str) -> Step:
    """The step that a call is."""
    return Step(call.op, call.kind, group, call.site, call.peer)


@dataclass(frozen=True, slots=True)
class Astray:
    """Where a rank left its way: ``call`` came after ``before``, where ``left_out`` had always come."""

    before: Step
    call: Step
    left_out: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """What a rank did lately."""

    known: bool
    """Whether it made its newest step, and the one before it, at other times as well."""
    astray: Astray | None
    """Where it left its way, if it did."""


def way_of(trace: Trace) -> Way:
    """The way of a rank up to its newest operation."""
    steps = _steps(trace)
    if len(steps) < 2:  # nothing follows anything
        return Way(known=False, astray=None)
    start = max(len(steps) - WINDOW, _last(steps, steps[-1]) + 1, 1)
    past = steps[:start]
    made, follows = Counter(past), _follows(past)
    astray = None
    for index in range(start, len(steps)):
        before, call = steps[index - 1], steps[index]
        if made[before] >= KNOWN and made[call] >= KNOWN and follows[before] and call not in follows[before]:
            astray = astray or Astray(before, call, _between(past, before, call))
    return Way(known=made[steps[-2]] >= KNOWN and made[steps[-1]] > 0, astray=astray)


def _last(steps: list[Step], step: Step) -> int:
    """Index of the last time before its newest that a step was made; -1 if there is none."""
    return next((index for index in range(len(steps) - 2, -1, -1) if steps[index] == step), -1)


def _follows(steps: list[Step]) -> defaultdict[Step, set[Step]]:
    found: defaultdict[Step, set[Step]] = defaultdict(set)
    for one, other in pairwise(steps):
        found[one].add(other)
    return found


def _between(steps: list[Step], before: Step, call: Step) -> tuple[Step, ...]:
    """What the rank did between the two steps the last time that it made both."""
    for start in range(len(steps) - 1, -1, -1):
        if steps[start] == before and call in steps[start + 1 : start + WINDOW]:
            return tuple(steps[start + 1 : steps.index(call, start + 1)])
    return ()


def _steps(trace: Trace) -> list[Step]:
    table = trace.operations
    found: list[Step] = []
    for row in range(max(0, len(table) - REACH), len(table)):
        call = table.calls[table.call[row]]
        if call.kind is Kind.GROUP or call.op == "unrecorded":
            continue
        step = step_of(call, table.groups[table.group[row]])
        # The buckets of one backward come from one line; how many there are is not the order of the program.
        if not found or found[-1] != step:
            found.append(step)
    return found
