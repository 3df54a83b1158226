"""Calls in another order that look alike: they were paired all the same, nobody waited, and the values were mixed up.

Only the call sites tell, so this is careful.  Barriers carry no values.  Where one rank always goes another way than the
others, taking turns may be meant: that is possible, and no more.  It is likely where the rank itself went the others' way at
other times.  Two ranks that never go the same way are left alone.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from desync.diagnosis.advice import advice
from desync.diagnosis.align import exchanged
from desync.diagnosis.board import Board, GroupBoard, Lane
from desync.diagnosis.frontier import Parting, divergence
from desync.diagnosis.order import Exchange
from desync.diagnosis.words import called, counted, named
from desync.diagnosis.words import place as line_of
from desync.model import CallSite, Certainty, Finding, Operation, Status

MAX_ODD_LANES = 64
"""So many ranks that go another way than most are looked at."""
MAX_PLACES = 256
"""So many exchanges of one rank are looked at."""
NO_VALUES = frozenset({"barrier", "monitored_barrier"})

Line: TypeAlias = "array[int]"
"""The operations of a rank in a group as numbers: equal numbers, same arguments from the same line with the same callers."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's operations are exchanged: from which to which index of the lines."""

    first: int
    end: int


class Lines:
    """The ranks of one group side by side, as far as all of them are known, up to where they are known to part (``until``)."""

    def __init__(self, group: GroupBoard, until: int | None = None) -> None:
        self.group = group
        lanes = {rank: lane for rank, lane in group.lanes.items() if len(lane.rows)}
        self.low = max((lane.first for lane in lanes.values()), default=1)
        self.high = min((lane.last for lane in lanes.values()), default=0)
        self.whole = until is None and _all_over(lanes.values())
        if until is not None:
            self.high = min(self.high, until - 1)
        numbers: dict[tuple[int, CallSite | None], int] = {}
        self.by_rank = {rank: self._line(lane, numbers) for rank, lane in lanes.items()} if self.high > self.low else {}
        bytes_of = {rank: line.tobytes() for rank, line in self.by_rank.items()}
        counts = Counter(bytes_of.values()).most_common(1)
        usual = counts[0][0] if counts else b""
        self.reference = next((rank for rank, line in bytes_of.items() if line == usual), -1)
        """A rank that goes the way of most."""
        self.odd = [rank for rank, line in bytes_of.items() if line != usual][:MAX_ODD_LANES]
        """The ranks that go another way."""

    def _line(self, lane: Lane, numbers: dict[tuple[int, CallSite | None], int]) -> Line:
        table = lane.trace.operations
        start, end = self.low - lane.first, self.high - lane.first + 1
        calls = [table.call[row] for row in lane.rows[start:end]]
        # The key belongs to the call, so that a call needs to be looked up only once.
        keys = dict(zip(calls, lane.keys[start:end], strict=True))
        number_of = {call: numbers.setdefault((key, table.calls[call].site), len(numbers)) for call, key in keys.items()}
        return array("q", map(number_of.__getitem__, calls))

    def values(self, place: Place) -> bool:
        """Whether operations that carry values are exchanged there."""
        lane = self.group.lanes[self.reference]
        return any(operation.call.op not in NO_VALUES for operation in self.operations(lane, place))

    def operations(self, lane: Lane, place: Place) -> tuple[Operation, ...]:
        """What a rank did there."""
        found = (lane.at(self.low + index) for index in range(place.first, place.end))
        return tuple(operation for operation in found if operation is not None)

    def sides(self, place: Place) -> list[tuple[int, ...]]:
        """The ranks by what they did there, most of them first."""
        sides: dict[bytes, list[int]] = {}
        for rank, line in self.by_rank.items():
            sides.setdefault(line[place.first : place.end].tobytes(), []).append(rank)
        return sorted((tuple(ranks) for ranks in sides.values()), key=lambda ranks: (-len(ranks), ranks))


def _all_over(lanes: Collection[Lane]) -> bool:
    """Whether all ranks have ended, and after the same operation of the group."""
    return len({lane.last for lane in lanes}) == 1 and all(lane.trace.exit is not None for lane in lanes)


def findings(board: Board, partings: Iterable[Parting]) -> list[Finding]:
    """One finding for each group and side whose calls were exchanged without anybody noticing, before a known parting."""
    parted: dict[int, int] = {}
    for parting in partings:
        if parting.mismatch:
            parted[id(parting.board)] = min(parting.seq, parted.get(id(parting.board), parting.seq))
    return [
        finding
        for group in board.groups
        if group.kind == "collective" and len(group.lanes) > 1
        for finding in _findings(Lines(group, parted.get(id(group))))
    ]


def _findings(lines: Lines) -> Iterator[Finding]:
    said: set[tuple[int, tuple[int, ...]]] = set()
    for rank in lines.odd:
        places = [place for place in _places(lines, rank) if lines.values(place)]
        sides = _two_sides(lines, rank, places[0]) if places else None
        if sides is None or (key := (places[0].first, sides[1])) in said:
            continue
        said.add(key)
        finding = _finding(lines, places[0], sides, len(places))
        if finding is not None:
            yield finding


def _places(lines: Lines, rank: int) -> list[Place]:
    """Where the same operations come in another order, and both agree for longer than that afterwards."""
    mine, theirs = lines.by_rank[rank], lines.by_rank[lines.reference]
    found: list[Place] = []
    index, size = 0, len(mine)
    while index < size and len(found) < MAX_PLACES:
        if mine[index] == theirs[index]:
            index += 1
            continue
        length = exchanged(mine, theirs, index)
        end, after = index + length, index + 2 * length + 1
        if length and mine[end:after] == theirs[end:after] and (after <= size or lines.whole):
            found.append(Place(index, end))
        index = max(end, index + 1)
    return found


Sides = tuple[tuple[int, ...], tuple[int, ...]]
"""Those who went the way of most, and those who went the other; of equal size where there is no majority."""


def _two_sides(lines: Lines, rank: int, place: Place) -> Sides | None:
    """Both sides of an exchange; None if there are more than two and none of them has the majority."""
    sides = lines.sides(place)
    own = next(side for side in sides if rank in side)
    other = next(side for side in sides if lines.reference in side)
    majority, odd = (own, other) if len(own) > len(other) else (other, own)
    if len(sides) > 2 and 2 * len(majority) <= len(lines.by_rank):
        return None
    return majority, odd


def _finding(lines: Lines, place: Place, sides: Sides, times: int) -> Finding | None:
    most, odd = sides
    strays = _strays(lines, sides, place)
    if len(most) > len(odd):
        return _said(lines, place, sides, culprits=odd if strays == [odd] else (), times=times)
    if len(strays) != 1:
        return None
    return _said(lines, place, sides if strays == [odd] else (odd, most), culprits=strays[0], times=times)


def _strays(lines: Lines, sides: Sides, place: Place) -> list[tuple[int, ...]]:
    """The sides that went the other one's way at another time, when both went it together."""
    one, other = (lines.by_rank[side[0]] for side in sides)
    found = []
    for side, way in ((sides[0], other), (sides[1], one)):
        starts = _repeated(way, place)
        if any(_same(one, other, way, start, place) for start in starts):
            found.append(side)
    return found


def _repeated(way: Line, place: Place) -> Iterator[int]:
    """Where else a line is as it is at a place, and goes on there (or comes there) as it does here.

    Without that, the end of one turn and the beginning of the next look like an exchange of both.
    """
    wanted = way[place.first : place.end]
    before, after = way[max(place.first - 1, 0) : place.first], way[place.end : place.end + 1]
    size = len(wanted)
    for start, token in enumerate(way):
        if token == wanted[0] and start != place.first and way[start : start + size] == wanted:
            came, goes = way[max(start - 1, 0) : start], way[start + size : start + size + 1]
            if (len(came) and came == before) or (len(goes) and goes == after):
                yield start


def _same(one: Line, other: Line, way: Line, start: int, place: Place) -> bool:
    end = start + place.end - place.first
    return one[start:end] == other[start:end] == way[start:end]


def _said(lines: Lines, place: Place, sides: Sides, culprits: tuple[int, ...], times: int) -> Finding:
    usual, odd = sides
    exchange = Exchange(*(lines.operations(lines.group.lanes[side[0]], place) for side in (odd, usual)))
    race = exchange.threads
    others = tuple(rank for rank in lines.by_rank if rank not in odd)
    parting = Parting(lines.group, lines.low + place.first, (others, odd), absent=(), pending=(), failed=())
    return Finding(
        status=Status.MISMATCH,
        cause=exchange.cause,
        certainty=Certainty.LIKELY if culprits or race else Certainty.POSSIBLE,
        culprit_ranks=() if race else culprits,
        summary=_summary(exchange, sides, times, sure=bool(culprits or race)),
        advice=advice(exchange.cause),
        evidence=exchange.lines,
        time=parting.time,
        divergence=divergence(parting, culprits=odd),
    )


def _summary(exchange: Exchange, sides: Sides, times: int, sure: bool) -> str:
    one, other = exchange.mine[0], exchange.theirs[0]
    who = named(sides[1])
    often = "" if times == 1 else f" ({counted(times, 'time')} in all)"
    effect = "their values were mixed up" if sure else "unless the ranks mean to take turns, their values were mixed up"
    return (
        f"{who[0].upper()}{who[1:]} called {called(one)} at {line_of(one.call.site)} where {named(sides[0])} called "
        f"{called(other)} at {line_of(other.call.site)}, and the other way round afterwards{often}; both look alike, so "
        f"nothing stopped them: {effect}."
    )
