"""Where a rank did something that it never does: its own past against its newest operations.

Training repeats itself.  The newest operations of a rank that is only held up by others are the beginning of something that it
did before; those of a rank that left an operation out, put one in or swapped two are not, from that place on.
"""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass

from desync.model import Operation, Trace

MAX_ROWS = 20_000
LEAST = 6
"""So many operations in a row have to be the same to be called a repetition."""
REACH = 256
PAST = 100
"""With fewer operations than this known there are no habits to speak of."""
MAX_PLACES = 64
CLEAR = 2.0
"""How much further back the others' habits have to hold than the one's that is blamed."""


class Change(enum.Enum):
    """What a rank did otherwise."""

    LEFT_OUT = "left out"
    PUT_IN = "put in"
    REPLACED = "replaced"
    OTHER_ARGUMENTS = "other arguments"
    SWAPPED = "swapped"
    OTHER = "other"


DID = {
    Change.LEFT_OUT: "left out",
    Change.PUT_IN: "made",
    Change.REPLACED: "made",
    Change.OTHER_ARGUMENTS: "changed",
    Change.SWAPPED: "swapped",
}
"""What is said of a rank that did so."""


@dataclass(frozen=True, slots=True)
class Break:
    """The newest break with its habits: the operations since then repeat the past, those across it do not."""

    rank: int
    length: int
    """How many of its newest operations repeat something that it did before."""
    change: Change
    operation: Operation
    """The one put in; of one left out, how it looked when it was last done."""
    seq: int
    """The number that it has, or would have had, in its group."""


def _tokens(trace: Trace) -> tuple[array[int], int]:
    """What a rank did as numbers (call and group), its newest operations only, and the row of the first."""
    table = trace.operations
    start = max(0, len(table) - MAX_ROWS)
    many = len(table.groups)
    pairs = zip(table.call[start:], table.group[start:], strict=True)
    return array("q", (call * many + group for call, group in pairs)), start


def newest_break(trace: Trace) -> Break | None:
    """The newest break with a rank's habits; None if all that is known repeats itself, or too little is known."""
    tokens, start = _tokens(trace)
    if len(tokens) < PAST:
        return None
    length, places = _longest_repeated_end(tokens)
    first = len(tokens) - length
    if not length:
        return _never_done_before(trace, tokens, start)
    places = [place for place in places if place > 1]
    if first < 2 or not places:  # all that is known repeats itself
        return None
    change, row, usual = max((_change(tokens, first, place) for place in places), key=lambda found: found[3])[:3]
    operation = trace.operations.row(trace.rank, start + row)
    seq = operation.seq
    if change is Change.LEFT_OUT:
        # Of several alike in a row any may be missing; if nothing of the kind came afterwards, it is the last.
        after = next((place for place in range(first, len(tokens)) if tokens[place] != tokens[row]), first)
        came = any(_alike(trace, operation, each) for each in range(start + after, start + len(tokens)))
        seq = _next_seq(trace, operation, start + (first if came else after))
    if change is Change.REPLACED and trace.operations.row(trace.rank, start + usual).call.op == operation.call.op:
        change = Change.OTHER_ARGUMENTS
    return Break(trace.rank, length, change, operation, seq)


def _never_done_before(trace: Trace, tokens: array[int], start: int) -> Break:
    """The break of a rank whose very newest operation is new: put in, unless it stands where its like usually does."""
    operation = trace.operations.row(trace.rank, -1)
    usual = _following(trace, tokens[:-1], start)
    alike = usual is not None and (usual.group, usual.call.op) == (operation.group, operation.call.op)
    return Break(trace.rank, 0, Change.OTHER_ARGUMENTS if alike else Change.PUT_IN, operation, operation.seq)


def expected_next(trace: Trace) -> Operation | None:
    """What the rank did the last time that it had done what it did now; None if it has no past to tell."""
    return _following(trace, *_tokens(trace))


def _following(trace: Trace, tokens: array[int], start: int) -> Operation | None:
    """What came after the newest earlier occurrence of the longest end of ``tokens``."""
    length, places = _longest_repeated_end(tokens)
    if length < LEAST:
        return None
    return trace.operations.row(trace.rank, start + max(places) + length)


def _longest_repeated_end(tokens: array[int]) -> tuple[int, list[int]]:
    """Length of the longest end of a sequence that occurs in it before, and where earlier occurrences begin, newest first.

    The Z-function of the reversed sequence: linear time.
    """
    text = tokens[::-1]
    size = len(text)
    best, places = 0, [0]
    z = array("q", bytes(8 * size))
    left = right = 0
    for index in range(1, size):
        reach = min(right - index, z[index - left]) if index < right else 0
        while index + reach < size and text[reach] == text[index + reach]:
            reach += 1
        z[index] = reach
        if index + reach > right:
            left, right = index, index + reach
        if reach > best:
            best, places = reach, []
        if reach == best and len(places) < MAX_PLACES:
            places.append(size - index - reach)
    return best, places


def _change(tokens: array[int], first: int, earlier: int) -> tuple[Change, int, int, int]:
    """What happened before the repeated end: that which lets most of the time before agree again.

    Returns it with the row that it is about, the row of what is usually there, and how many operations agree then.
    """
    swapped = tokens[first - 1] == tokens[earlier - 2] and tokens[first - 2] == tokens[earlier - 1]
    kept = {
        Change.SWAPPED: _agree_before(tokens, first - 2, earlier - 2) if swapped else 0,
        Change.LEFT_OUT: _agree_before(tokens, first, earlier - 1),
        Change.PUT_IN: _agree_before(tokens, first - 1, earlier),
        Change.REPLACED: _agree_before(tokens, first - 1, earlier - 1),
    }
    change = max(kept, key=lambda each: kept[each])
    agreed = kept[change]
    if agreed < LEAST:
        change = Change.PUT_IN if tokens.count(tokens[first - 1]) == 1 else Change.OTHER
    return change, earlier - 1 if change is Change.LEFT_OUT else first - 1, earlier - 1, agreed


def _agree_before(tokens: array[int], one: int, other: int) -> int:
    """How many operations before two places are the same."""
    most = min(one, other, REACH)
    return next((length for length in range(most) if tokens[one - 1 - length] != tokens[other - 1 - length]), most)


def _next_seq(trace: Trace, left_out: Operation, row: int) -> int:
    """The number that an operation left out before ``row`` would have had."""
    before = next((index for index in range(row - 1, -1, -1) if _alike(trace, left_out, index)), None)
    return trace.operations.seq[before] + 1 if before is not None else left_out.seq


def _alike(trace: Trace, operation: Operation, row: int) -> bool:
    """Whether another operation is numbered with this one: of its group, and for p2p with its peer."""
    other = trace.operations.row(trace.rank, row)
    kind, peer = operation.call.kind, operation.call.peer
    return (other.group, other.call.kind, other.call.peer) == (operation.group, kind, peer)


def odd_one(breaks: dict[int, Break | None]) -> Break | None:
    """The break of the one rank that left something out or put something in; None if no one stands out."""
    known = [each for each in breaks.values() if each is not None and each.change is not Change.OTHER]
    known.sort(key=lambda each: each.length)
    if not known or len(breaks) < 2:
        return None
    if len(known) > 1 and known[1].length < known[0].length * CLEAR:
        return None
    return known[0]
