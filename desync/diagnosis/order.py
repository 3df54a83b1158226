"""Operations of one group in another order: what one rank calls now the others call a moment later, and the other way round.

Where the operations differ, somebody waits; where they look alike, they are paired all the same and values are mixed up
without a word.  Then only the call sites tell, and call sites that differ are no fault in themselves: ranks may make one call
from different lines, and may take turns.  So what is asked for is an exchange: the same calls, from the same lines with the
same callers, in another order than on a majority, and agreement afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from desync.diagnosis.align import Tokens, exchanged
from desync.diagnosis.board import Lane
from desync.diagnosis.frontier import Parting
from desync.diagnosis.progress import position
from desync.diagnosis.suspect import Explanation, Suspect, same_call
from desync.diagnosis.words import called, named, place
from desync.model import Cause, Certainty, MarkKind, Operation

MIN_TURNS = 2
"""So often must a rank have made two calls of one line in the same order before that order is called its habit."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Operations that two ranks made in different order, as each made them."""

    mine: tuple[Operation, ...]
    theirs: tuple[Operation, ...]

    @property
    def threads(self) -> bool:
        """Whether threads of one rank made them: then no line of the program decides on the order."""
        return any(len({operation.thread for operation in side}) > 1 for side in (self.mine, self.theirs))

    @property
    def cause(self) -> Cause:
        """What it is called."""
        return Cause.GROUP_ORDER_CYCLE if self.threads else Cause.ORDER_MISMATCH

    @property
    def lines(self) -> tuple[str, str]:
        """Both orders in words."""
        return in_order(self.mine[:1], self.mine), in_order(self.theirs[:1], self.theirs)


def in_order(ranks: Iterable[Operation], operations: Sequence[Operation]) -> str:
    """The order in which a rank made some operations, with their lines."""
    several = len({operation.thread for operation in operations}) > 1
    steps = []
    for operation in operations:
        thread = f" (thread {operation.thread})" if several else ""
        steps.append(f"{called(operation)} at {place(operation.call.site)}{thread}")
    return f"{named(operation.rank for operation in ranks)}: {', then '.join(steps)}"


def exchange_at(parting: Parting, one: int, other: int) -> Exchange | None:
    """The operations at a parting that two ranks made in different order; None if they are not the same ones."""
    if parting.board.kind != "collective" or parting.shows_at is not None:
        return None  # what moved a parting to where it is, is a shift
    mine, theirs, seq = parting.board.lanes[one], parting.board.lanes[other], parting.seq
    low, high = max(mine.first, theirs.first), min(mine.last, theirs.last)
    if not low <= seq <= high:
        return None
    tokens = Tokens()
    left, right = tokens.of(mine, low := max(low, seq - _BACK), high := min(high, seq + _BACK)), tokens.of(theirs, low, high)
    for start in range(seq - low, -1, -1):
        length = exchanged(left, right, start) if left[start] != right[start] else 0
        end = start + length
        if end > seq - low and not (end < min(len(left), len(right)) and left[end] != right[end]):
            return _exchange(mine, theirs, low + start, length)  # what differs afterwards as well is a shift
    return None


_BACK = 12
"""How far from the place where it shows an exchange may reach."""


def _exchange(mine: Lane, theirs: Lane, first: int, length: int) -> Exchange | None:
    sides = [
        tuple(operation for seq in range(first, first + length) if (operation := lane.at(seq)) is not None)
        for lane in (mine, theirs)
    ]
    return Exchange(sides[0], sides[1]) if _same_turn(mine, theirs, *sides) else None


def _same_turn(mine: Lane, theirs: Lane, ours: Sequence[Operation], others: Sequence[Operation]) -> bool:
    """Whether both made the operations in the same turn of their loops: one that was left out comes again in the next."""
    first = others[0].call
    again = next((each for each in ours if each.call.op == first.op and each.call.site == first.site), None)
    if again is None:
        return True
    turns = [
        (at.batches, at.forwards, at.backwards, at.steps)
        for at in (position(mine.trace, again), position(theirs.trace, others[0]))
    ]
    return turns[0] == turns[1]


def order_mismatch(suspect: Suspect) -> Explanation | None:
    """It makes the same calls as the others, in another order."""
    found = exchange_at(suspect.parting, suspect.rank, suspect.witness.rank) if suspect.own is not None else None
    if found is None:
        return None
    what = f"called {called(found.mine[0])} at {place(found.mine[0].call.site)} where the others called "
    what += f"{called(found.theirs[0])} at {place(found.theirs[0].call.site)}; both made the same calls, in another order"
    if found.threads:
        what += " of their threads"
    return Explanation(
        found.cause,
        Certainty.PROVEN,
        what,
        evidence=found.lines,
        blames=not found.threads,
    )


def another_turn_of_one_line(suspect: Suspect) -> Explanation | None:
    """One line makes both calls, the suspect's and the others': it loops over what comes in another order.

    Of a rank that is held in the first of these calls nobody knows whether it would have made the other one afterwards.
    """
    if suspect.own is None or not _one_line(suspect) or (same_call(suspect) and not _one_too_early(suspect)):
        return None
    line = place(suspect.own.call.site)
    return Explanation(
        Cause.ORDER_MISMATCH,
        Certainty.LIKELY,
        f"called {called(suspect.own)} at {line} where the others called {called(suspect.theirs)} at the same line: what is "
        "looped over there has another order, or lacks something",
        evidence=tuple(in_order([operation], [operation]) for operation in (suspect.own, suspect.theirs)),
    )


def _one_line(suspect: Suspect) -> bool:
    """Whether two different calls come from one line of a loop with the same callers, and not out of a backward or forward."""
    own, theirs = suspect.own, suspect.theirs
    if own is None or own.call.site is None or own.call.site != theirs.call.site or own.call == theirs.call:
        return False
    frame = own.call.site.innermost
    looped = any(first <= frame.line <= last for first, last in suspect.evidence.loops.get(frame.file, ()))
    passes = (MarkKind.FORWARD, MarkKind.BACKWARD)
    return looped and not own.call.bucket and not any(mark.kind in passes and mark.left is None for mark in suspect.trace.marks)


def _one_too_early(suspect: Suspect) -> bool:
    """Whether the suspect's call is, by its own habit, the one that comes right after that which the others make."""
    own = suspect.own
    lane = suspect.parting.board.lanes[suspect.rank]
    theirs = suspect.parting.board.lanes[suspect.witness.rank].key(suspect.theirs.seq)
    if own is None or theirs is None:
        return False
    mine = lane.key(own.seq)
    earlier = [seq for seq in range(max(lane.first + 1, own.seq - _HABIT), own.seq) if lane.key(seq) == mine]
    turns = [seq for seq in earlier if (there := lane.at(seq)) is not None and there.call.site == own.call.site]
    return len(turns) >= MIN_TURNS and all(lane.key(seq - 1) == theirs for seq in turns)


_HABIT = 256
"""How far back a rank's habit at a line is looked for."""
