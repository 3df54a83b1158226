"""Finding where two ranks' sequences really parted.

Operations whose bytes fit are paired by the backend even if they come from different lines, so that a call too many or too few
shows only later, as a mismatch or an absence far from its place.  Here the lines count as well: the two sequences are aligned
by edit distance, and if all that follows agrees once one operation is taken out (or put in), the ranks parted there.

Different lines alone prove nothing (``if rank == 0: broadcast(a, 0) else: broadcast(b, 0)`` is sound); they are looked at only
where something is known to be wrong.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence

from desync.diagnosis.board import GroupBoard, Lane
from desync.diagnosis.compare import ANYTHING
from desync.model import CallSite

WINDOW = 256
"""How far back the sequences are compared; an older fault has left the ranks apart for longer than it can be placed."""
BAND = 12
"""How many operations one rank may be ahead in the alignment."""

MAX_STARTS = 16
"""How many differing lines are tried as the place of the fault."""

WIDEST = 12
"""How many operations may be in another order at one place."""

_SUBSTITUTE, _GAP, _IMPOSSIBLE = 3, 2, 1 << 30
"""Costs: a shift of one has to save more than two differing lines in a row, or two that are exchanged,, to be believed."""


class Tokens:
    """Numbers for (what must agree, call site) pairs over all ranks: equal numbers, same call from the same line."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, CallSite | None, str | None], int] = {}

    def of(self, lane: Lane, low: int, high: int) -> array[int]:
        """The tokens of a lane from one sequence number to another, both included; they must be held."""
        table = lane.trace.operations
        found = array("q")
        for seq in range(low, high + 1):
            index = seq - lane.first
            call = table.calls[table.call[lane.rows[index]]]
            key = (lane.keys[index], call.site, call.bucket)
            found.append(self._numbers.setdefault(key, len(self._numbers)))
        return found


def parted_before(board: GroupBoard, one: int, other: int, seq: int, tokens: Tokens, after: int = 0) -> int | None:
    """Where two ranks of a group were shifted against each other before ``seq`` and behind ``after``; None if they were not."""
    left, right = board.lanes[one], board.lanes[other]
    low = max(left.first, right.first, seq - WINDOW, after + 1)
    if low > min(left.last, right.last):
        return None
    if any(ANYTHING in lane.keys[low - lane.first :] for lane in (left, right)):
        return None  # of calls of which only the number is known nobody can say that one is too many
    mine = tokens.of(left, low, min(left.last, seq + BAND))
    theirs = tokens.of(right, low, min(right.last, seq + BAND))
    start = _shift(mine, theirs, seq - low)
    return None if start is None else low + start


def _shift(mine: Sequence[int], theirs: Sequence[int], last: int) -> int | None:
    """Where one side has operations that the other lacks, not after ``last``; None if no gap makes the rest agree."""
    common = min(len(mine), len(theirs))
    starts = [index for index in range(common) if mine[index] != theirs[index]]
    best, least = None, _without_gap(mine, theirs, starts)
    for passed, start in enumerate([index for index in starts if index <= last][:MAX_STARTS]):
        cost = passed * _SUBSTITUTE + _best_gap(mine, theirs, start)
        if cost < least:
            best, least = start, cost
    return best


def _without_gap(mine: Sequence[int], theirs: Sequence[int], starts: Sequence[int]) -> int:
    """What it costs to leave the two as they stand."""
    cost = upto = 0
    for start in starts:
        if start < upto:
            continue
        length = exchanged(mine, theirs, start)
        cost += length or _SUBSTITUTE
        upto = start + length
    return cost


def exchanged(mine: Sequence[int], theirs: Sequence[int], start: int) -> int:
    """How many operations from ``start`` on, at least two, are the same ones on both sides in another order; 0 if none are."""
    if theirs[start] not in mine[start + 1 : start + WIDEST] or mine[start] not in theirs[start + 1 : start + WIDEST]:
        return 0
    surplus: dict[int, int] = {}
    for length in range(1, min(WIDEST, len(mine) - start, len(theirs) - start) + 1):
        for token, change in ((mine[start + length - 1], 1), (theirs[start + length - 1], -1)):
            surplus[token] = surplus.get(token, 0) + change
        if not any(surplus.values()):
            return length
    return 0


def _best_gap(mine: Sequence[int], theirs: Sequence[int], start: int) -> int:
    """What the rest costs with the cheapest gap on either side at ``start``."""
    return min(_cost(mine, theirs, start, gap) for length in range(1, BAND + 1) for gap in (length, -length))


def _cost(mine: Sequence[int], theirs: Sequence[int], start: int, gap: int) -> int:
    """What the rest costs if one side's next ``gap`` operations are left out."""
    rest_mine, rest_theirs = mine[start + max(gap, 0) :], theirs[start + max(-gap, 0) :]
    if not rest_mine or not rest_theirs:
        return _IMPOSSIBLE  # nothing would be left to agree
    differing: int = sum(map(operator.ne, rest_mine, rest_theirs))
    if 2 * differing > min(len(rest_mine), len(rest_theirs)):
        return _IMPOSSIBLE  # ranks that call everything from other lines do not agree after a gap either
    return differing * _SUBSTITUTE + abs(gap) * _GAP
