"""Of several operations that wait for an absent rank: which one it would have come to first."""

from __future__ import annotations

from collections.abc import Iterable

from desync.diagnosis.board import GroupBoard
from desync.diagnosis.habits import expected_next
from desync.diagnosis.heads import Place, Standstill, time_at
from desync.model import Group, Kind, Operation


def missed(found: Standstill, places: Iterable[Place], absent: int | None = None) -> Place:
    """Of the operations that wait for absent ranks the one that they would have come to first.

    It is the one that the rank's habits expect next; where these do not tell, the collective that most ranks are in, unless
    these have been past another one of them in their own groups.
    """
    expected = expected_next(found.board.traces[absent]) if absent is not None else None

    def order(where: Place) -> tuple[bool, int, int, Place]:
        group = found.group_board(where)
        return group.kind != "collective", -len(found.at(where)), time_at(found, where) or 0, where

    ordered = sorted(places, key=order)
    for where in ordered:
        if expected is not None and works_on(found.group_board(where), expected):
            return where
    best = ordered[0]
    for where in ordered[1:]:
        if _precedes(found, where, best):
            best = where
    return best


def _precedes(found: Standstill, one: Place, other: Place) -> bool:
    """Whether ranks that wait in ``other`` have before been in what corresponds to ``one`` in a group of their own."""
    if _held_before(found, one, other):
        return True
    group = found.group_board(one)
    description, seq = group.group.description, one[1]
    if group.kind == "p2p":
        return any(_exchanges_before(found, rank, one) for rank in found.at(other)[:4])
    if group.kind != "collective" or description is None:
        return False
    for rank in found.at(other)[:4]:
        trace, head = found.board.traces[rank], found.heads[rank].operation
        own = {name for name, each in trace.groups.items() if each.description == description}
        rows = (trace.operations.row(rank, row) for row in range(head.index))
        if any(row.seq == seq and row.group in own and row.call.kind is Kind.COLLECTIVE for row in rows):
            return True
    return False


def _held_before(found: Standstill, one: Place, other: Place) -> bool:
    """Whether ranks that belong to both operations wait in the one, and none of them in the other."""
    both = set(found.group_board(one).group.ranks) & set(found.group_board(other).group.ranks)
    return not both.isdisjoint(found.at(one)) and both.isdisjoint(found.at(other))


def _exchanges_before(found: Standstill, rank: int, exchange: Place) -> bool:
    """Whether a rank, on its way to the collective that it waits in, has last done what corresponds to a send or recv.

    What corresponds goes between the same places of a group of the same kind, at the same point of the program.
    """
    trace, head = found.board.traces[rank], found.heads[rank].operation
    wanted = _route(found, exchange)
    for row in range(head.index - 1, -1, -1):
        operation = trace.operations.row(rank, row)
        if operation.call.kind is Kind.COLLECTIVE and operation.group == head.group:
            return False  # the collective before: the absent rank has been there
        group = trace.groups.get(operation.group)
        if operation.call.kind is Kind.P2P and group is not None and operation.call.peer in group.ranks:
            ends = (rank, operation.call.peer) if operation.call.op == "send" else (operation.call.peer, rank)
            if wanted == (group.description, *map(group.ranks.index, ends)):
                return _same_point(found, operation, ends, found.at(exchange)[0])
    return False


def _same_point(found: Standstill, done: Operation, ends: tuple[int, int], waiting: int) -> bool:
    """Whether the other side of a send or recv did it after the same collective as that after which a rank waits."""
    partner = ends[1] if ends[0] == done.rank else ends[0]
    board = next((each for each in found.board.groups if each.kind == "p2p" and each.group == Group(done.group, ends)), None)
    theirs = board.lanes[partner].at(done.seq) if board is not None and partner in board.lanes else None
    if theirs is None:
        return False
    points = [_collective_before(found, each) for each in (theirs, found.heads[waiting].operation)]
    return points[0] == points[1]


def _collective_before(found: Standstill, operation: Operation) -> tuple[str, int] | None:
    """Group and number of a rank's last collective before an operation."""
    table = found.board.traces[operation.rank].operations
    rows = range(operation.index - 1, -1, -1)
    row = next((row for row in rows if table.calls[table.call[row]].kind is Kind.COLLECTIVE), None)
    return (table.groups[table.group[row]], table.seq[row]) if row is not None else None


def _route(found: Standstill, exchange: Place) -> tuple[str | None, int, int] | None:
    """Description of the group of a send or recv, and the places of its two ranks in it."""
    pair = found.group_board(exchange).group
    traces = (found.board.traces[rank] for rank in pair.ranks if rank in found.board.traces)
    group = next((trace.groups[pair.name] for trace in traces if pair.name in trace.groups), None)
    if group is None or group.description is None or not set(pair.ranks) <= set(group.ranks):
        return None
    source, destination = pair.ranks
    return group.description, group.ranks.index(source), group.ranks.index(destination)


def works_on(group: GroupBoard, operation: Operation) -> bool:
    """Whether an operation of some rank belongs to this board."""
    if group.group.name != operation.group:
        return False
    if operation.call.kind is Kind.COLLECTIVE:
        return group.kind == "collective"
    call = operation.call
    pair = (operation.rank, call.peer) if call.op == "send" else (call.peer, operation.rank)
    return group.kind == "p2p" and group.group.ranks == pair
