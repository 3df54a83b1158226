"""Ranks that wait for each other in a circle, and which of them began it: by opposite order, or by a break with its habits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from desync.diagnosis.advice import advice
from desync.diagnosis.board import GroupBoard
from desync.diagnosis.habits import DID, Break, Change, newest_break, odd_one
from desync.diagnosis.heads import NOWHERE, Place, Standstill, divergence_at, head_of, name_of, time_at
from desync.diagnosis.missed import works_on
from desync.diagnosis.words import capital, named, place
from desync.model import Cause, Certainty, ClaimKind, Divergence, Finding, Kind, Status


def findings(found: Standstill) -> list[Finding]:
    """What led to the circle, as far as the records tell; empty if there is none."""
    ranks = found.circle()
    if not ranks:
        return []
    order = _opposite_order(found, ranks)
    if order is not None:
        return [order]
    broken = odd_one({rank: newest_break(found.board.traces[rank]) for rank in ranks})
    return [_broken(found, ranks, broken) if broken is not None else _undecided(found, ranks)]


def _opposite_order(found: Standstill, ranks: tuple[int, ...]) -> Finding | None:
    """Two operations that have been entered by both sides, in opposite order; those of the circle are tried first."""
    for one, other in _pairs_of_heads(found, ranks):
        if (sides := _sides(found, one, other)) is not None:
            return _order_finding(found, ranks, sides, (one, other))
    return None


MAX_PLACES = 128


def _pairs_of_heads(found: Standstill, ranks: tuple[int, ...]) -> Iterator[tuple[Place, Place]]:
    circle = dict.fromkeys(found.heads[rank].place for rank in ranks)
    every = dict.fromkeys(head.place for head in found.heads.values() if head.place[0] != NOWHERE)
    for places in (list(circle), [*circle, *(where for where in every if where not in circle)][:MAX_PLACES]):
        yield from ((one, other) for one in places for other in places if one < other)


def _sides(found: Standstill, one: Place, other: Place) -> tuple[list[int], list[int]] | None:
    """The ranks that entered ``one`` before ``other``, and those that did the reverse; None unless there are both."""
    first: list[int] = []
    second: list[int] = []
    for rank in found.group_board(one).lanes:
        rows = (_row(found, rank, one), _row(found, rank, other))
        if rows[0] is not None and rows[1] is not None:
            (first if rows[0] < rows[1] else second).append(rank)
    return (first, second) if first and second else None


def _row(found: Standstill, rank: int, where: Place) -> int | None:
    lane = found.group_board(where).lanes.get(rank)
    operation = lane.at(where[1]) if lane is not None else None
    return operation.index if operation is not None else None


def _order_finding(
    found: Standstill, ranks: tuple[int, ...], sides: tuple[list[int], list[int]], places: tuple[Place, Place]
) -> Finding:
    first, second = sides
    culprits = _wrong_side(found, first, second, places)
    names = [name_of(found, where) for where in places]
    same = found.group_board(places[0]).group.name == found.group_board(places[1]).group.name
    cause = Cause.ORDER_MISMATCH if same else Cause.GROUP_ORDER_CYCLE
    return Finding(
        status=Status.HANG,
        cause=cause,
        certainty=Certainty.LIKELY,
        culprit_ranks=culprits,
        summary=(
            f"{capital(named(first))} called {names[0]} before {names[1]}, {named(second)} the other way round: "
            "each side waits for the other."
        ),
        advice=advice(cause),
        evidence=tuple(head_of(found, rank) for rank in ranks),
        time=time_at(found, places[0]),
        divergence=divergence_at(found, places[0]),
    )


def _wrong_side(found: Standstill, first: list[int], second: list[int], places: tuple[Place, Place]) -> tuple[int, ...]:
    """The side that is wrong: the smaller one; of two equal ones that which others in the same place do not do, or which
    breaks with its own habits; empty if nothing tells.
    """
    if len(first) != len(second):
        return tuple(first if len(first) < len(second) else second)
    votes = Counter(vote for rank in found.heads if (vote := _vote(found, rank, places)) is not None)
    if votes[True] != votes[False] and not min(votes[True], votes[False]):
        return tuple(second if votes[True] else first)
    broken = [[rank for rank in side if newest_break(found.board.traces[rank]) is not None] for side in (first, second)]
    return tuple(broken[0] or broken[1]) if not (broken[0] and broken[1]) else ()


def _vote(found: Standstill, rank: int, places: tuple[Place, Place]) -> bool | None:
    """Whether a rank of neither side did what corresponds to the first of two operations before the other.

    What corresponds is the operation with the same number in its own group of the same kind; None where that does not tell.
    """
    one, other = (_counterpart(found, rank, place) for place in places)
    if one is None or other is None or (one[1] and other[1]):
        return None
    rows = [group.lanes[rank].at(place[1]) for (group, _), place in zip((one, other), places, strict=True)]
    if rows[0] is None or rows[1] is None:
        return None
    between = abs(rows[0].index - rows[1].index)
    return rows[0].index < rows[1].index if between < MAX_BETWEEN else None


MAX_BETWEEN = 32
"""Operations that are further apart than this are of different steps, whatever their numbers."""


def _counterpart(found: Standstill, rank: int, place: Place) -> tuple[GroupBoard, bool] | None:
    """The group of an operation if the rank is in it (then True), else the rank's only group of the same kind."""
    group = found.group_board(place)
    if rank in group.lanes:
        return group, True
    alike = [
        each
        for each in found.board.groups
        if rank in each.lanes
        and group.kind == each.kind == "collective"
        and group.group.description is not None
        and each.group.description == group.group.description
    ]
    return (alike[0], False) if len(alike) == 1 else None


def _broken(found: Standstill, ranks: tuple[int, ...], broken: Break) -> Finding:
    operation = broken.operation
    cause = _CAUSES[broken.change]
    # What is left out is named by what it was when it was last done, with the number that it would have had.
    name = f"{operation.call.op} #{broken.seq} of group {operation.group}"
    did = DID[broken.change]
    return Finding(
        status=Status.HANG,
        cause=cause,
        certainty=Certainty.LIKELY,
        culprit_ranks=(broken.rank,),
        summary=(
            f"{capital(named([broken.rank]))} {did} {name} at {place(operation.call.site)}, against its own habit; since then "
            f"{named(ranks)} wait for each other."
        ),
        advice=advice(Cause.P2P_MISMATCH if operation.call.kind is Kind.P2P else cause),
        evidence=(
            f"{named([broken.rank])}: its newest {broken.length} operations repeat its past, the one before them does not",
            *(head_of(found, rank) for rank in ranks[:8]),
        ),
        time=time_at(found, found.heads[broken.rank].place),
        divergence=_where_broken(found, broken),
    )


_CAUSES = {
    Change.LEFT_OUT: Cause.SKIPPED_COLLECTIVE,
    Change.PUT_IN: Cause.RANK_ONLY_COLLECTIVE,
    Change.OTHER_ARGUMENTS: Cause.ARGUMENT_MISMATCH,
    Change.REPLACED: Cause.RANK_ONLY_COLLECTIVE,
    Change.SWAPPED: Cause.ORDER_MISMATCH,
}


def _where_broken(found: Standstill, broken: Break) -> Divergence:
    for index, group in enumerate(found.board.groups):
        if broken.rank in group.lanes and works_on(group, broken.operation):
            return replace(divergence_at(found, (index, broken.seq)), op=broken.operation.call.op)
    return divergence_at(found, found.heads[broken.rank].place)


def _undecided(found: Standstill, ranks: tuple[int, ...]) -> Finding:
    p2p = any(found.group_board(found.heads[rank].place).kind == "p2p" for rank in ranks)
    cause = Cause.P2P_MISMATCH if p2p else Cause.UNKNOWN
    fewer = [
        claim for claim in found.board.evidence.claims if claim.kind is ClaimKind.BEHIND and set(claim.ranks) <= set(ranks)
    ]
    culprits = fewer[0].ranks if p2p and len(fewer) == 1 else ()
    said = (f"{named(culprits)} {fewer[0].text}",) if culprits else ()
    return Finding(
        status=Status.HANG,
        cause=cause,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=culprits,
        summary=f"{capital(named(ranks))} wait for each other in a circle; what led to it is no longer in the records.",
        advice=advice(cause),
        evidence=(*said, *(head_of(found, rank) for rank in ranks[:8])),
        time=time_at(found, found.heads[ranks[0]].place),
        divergence=divergence_at(found, found.heads[ranks[0]].place),
    )
