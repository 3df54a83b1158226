"""Who stands where when nothing moves any more, for records in which the host runs ahead of the device.

On a GPU a rank enters operation after operation and all but the first of them wait in its queues: that a rank has *entered* an
operation does not mean that it takes part in it.  What counts is the oldest unfinished operation of each rank, its *head*.  A
rank whose head is elsewhere waits itself; the ranks at the ends of these chains are the roots:

- *idle*: it has nothing unfinished and did not come;
- *lagging*: the others have finished the operation, which takes all, and it has not: its device stands;
- *unseen*: nothing is known of it;
- *together*: all members have the same operation as their head, and it does not finish.

Where no chain ends, there is a circle.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from desync.diagnosis.board import Board, GroupBoard, Pair
from desync.diagnosis.words import called, named
from desync.model import AtDivergence, Divergence, Kind, Operation, OperationState


class Root(enum.Enum):
    """Why a chain of waiting ends."""

    IDLE = "idle"
    LAGGING = "lagging"
    UNSEEN = "unseen"
    TOGETHER = "together"


Place = tuple[int, int]
"""An operation that ranks do together: index of its board, sequence number."""


NOWHERE = -1
"""Board of an operation whose other members are not known: who is in it waits, for nobody knows whom."""


@dataclass(frozen=True, slots=True)
class Head:
    """The oldest unfinished operation of a rank."""

    place: Place
    operation: Operation


@dataclass(slots=True)
class Standstill:
    """All heads of a job, with the roots of the waiting."""

    board: Board
    heads: Mapping[int, Head]
    waits_for: dict[int, set[int]] = field(default_factory=dict)
    """For each waiting rank those that it waits for and that wait themselves."""
    roots: dict[Root, dict[Place, set[int]]] = field(default_factory=dict)
    """For each kind of root, by the operation that waits for them, the ranks that are it (for TOGETHER: that are in it)."""

    def at(self, place: Place) -> tuple[int, ...]:
        """The ranks whose head is there."""
        return tuple(rank for rank, head in self.heads.items() if head.place == place)

    def group_board(self, place: Place) -> GroupBoard:
        """The board of the operation."""
        return self.board.groups[place[0]]

    def circle(self) -> tuple[int, ...]:
        """Ranks that wait for each other in a circle, in the order of waiting; empty if there is none."""
        for start in self.waits_for:
            if found := self._circle_from(start):
                return found
        return ()

    def _circle_from(self, start: int) -> tuple[int, ...]:
        path: list[int] = []
        here: int | None = start
        while here is not None:
            if here in path:
                return tuple(path[path.index(here) :])
            path.append(here)
            here = min(self.waits_for.get(here, ()), default=None)
        return ()


def stand(board: Board) -> Standstill:
    """Where all ranks stand, and what they wait for."""
    places = _places(board)
    heads = {rank: head for rank in board.traces if (head := _head(board, rank, places)) is not None}
    found = Standstill(board, heads)
    for place in dict.fromkeys(head.place for head in heads.values() if head.place[0] != NOWHERE):
        _examine(found, place)
    return found


def _places(board: Board) -> dict[tuple[int, str | Pair], int]:
    """For each rank and lane the board that it belongs to."""
    places: dict[tuple[int, str | Pair], int] = {}
    for index, group in enumerate(board.groups):
        if group.kind == "group_creation":
            continue
        name: str | Pair = Pair(group.group.name, *group.group.ranks) if group.kind == "p2p" else group.group.name
        for rank in group.lanes:
            places.setdefault((rank, name), index)
    return places


def _head(board: Board, rank: int, places: Mapping[tuple[int, str | Pair], int]) -> Head | None:
    table = board.traces[rank].operations
    for row, completed in enumerate(table.completed):
        if completed > 0:
            continue
        operation = table.row(rank, row)
        if operation.call.kind is Kind.GROUP or not (operation.pending or operation.failed):
            continue
        lane = _lane(rank, operation)
        board_index = places.get((rank, lane), NOWHERE) if lane is not None else NOWHERE
        return Head((board_index, operation.seq), operation)
    return None


def _lane(rank: int, operation: Operation) -> str | Pair | None:
    call = operation.call
    if call.kind is Kind.COLLECTIVE:
        return operation.group
    if call.peer is None:
        return None
    return Pair(operation.group, rank, call.peer) if call.op == "send" else Pair(operation.group, call.peer, rank)


def _examine(found: Standstill, place: Place) -> None:
    """Sort the members of an operation that is somebody's head: with it, waiting elsewhere, or a root."""
    group, seq = found.group_board(place), place[1]
    here = {rank for rank, head in found.heads.items() if head.place == place}
    waited: set[int] = set()
    unseen = set(group.unseen)
    if unseen:
        _root(found, Root.UNSEEN, place, unseen)
    for member in group.group.ranks:
        if member in here or member in unseen:
            continue
        if _passed(group, member, seq):
            # Where most have not finished, it is no fault of theirs: the first to finish was merely early.
            held = 2 * len(here) <= len(group.group.ranks) and _needed_all(found, group, member, place)
            _root(found, Root.LAGGING if held else Root.TOGETHER, place, here)
        elif member in found.heads:
            waited.add(member)
        elif not _is_at(group, member, seq):
            _root(found, Root.IDLE, place, {member})
    for rank in here:
        found.waits_for.setdefault(rank, set()).update(waited)
    if here.issuperset(group.group.ranks) and len(here) > 1:
        _root(found, Root.TOGETHER, place, here)


def _root(found: Standstill, kind: Root, place: Place, ranks: set[int]) -> None:
    found.roots.setdefault(kind, {}).setdefault(place, set()).update(ranks)


def _passed(group: GroupBoard, member: int, seq: int) -> bool:
    """Whether a member has finished the operation: its record says so, or it is older than all that is still held."""
    lane = group.lanes.get(member)
    if lane is None or lane.last < seq or not len(lane.rows):
        return False
    operation = lane.at(seq)
    return seq < lane.first if operation is None else bool(operation.completed) and not operation.failed


_ONE_SIDED = frozenset({"broadcast", "reduce", "scatter", "gather"})
"""What a member can finish although others have not even come: who has only to send is done when its data is on the way."""


def _needed_all(found: Standstill, group: GroupBoard, member: int, place: Place) -> bool:
    """Whether a member that has passed an operation could do so only because all others took part."""
    ops = {found.heads[rank].operation.call.op for rank in found.at(place)}
    if group.kind == "p2p":
        return "recv" not in ops  # its partner has sent, and a send is over before anybody takes it
    if ops.isdisjoint(_ONE_SIDED):
        return True
    lane, table = group.lanes[member], group.lanes[member].trace.operations
    later = [row for row in lane.rows[max(0, place[1] + 1 - lane.first) :] if table.completed[row] > 0]
    return any(table.calls[table.call[row]].op not in (*_ONE_SIDED, "unrecorded") for row in later)


def _is_at(group: GroupBoard, member: int, seq: int) -> bool:
    """Whether a member has entered it (and its end is not known)."""
    lane = group.lanes.get(member)
    return lane is not None and lane.at(seq) is not None


def divergence_at(found: Standstill, place: Place) -> Divergence:
    """An operation that waits, as the report shows it."""
    group, seq = found.group_board(place), place[1]
    waiting = [found.heads[rank].operation for rank in found.at(place)]
    first = waiting[0] if waiting else next(_operations(group, seq), None)
    by_rank = {rank: _standing(found, group, rank, place) for rank in group.group.ranks}
    times = [operation.entered for operation in waiting if operation.entered]
    return Divergence(
        group=group.group,
        kind=group.kind,
        seq=seq,
        op=first.call.op if first is not None else "unknown",
        by_rank=by_rank,
        bucket=first.call.bucket if first is not None else None,
        time=max(times, default=None),
    )


def _operations(group: GroupBoard, seq: int) -> Iterator[Operation]:
    return (operation for lane in group.lanes.values() if (operation := lane.at(seq)) is not None)


def _standing(found: Standstill, group: GroupBoard, rank: int, place: Place) -> AtDivergence:
    lane = group.lanes.get(rank)
    operation = lane.at(place[1]) if lane is not None else None
    if operation is None:
        if lane is not None and _passed(group, rank, place[1]):
            return AtDivergence(OperationState.COMPLETED, None)
        return AtDivergence(OperationState.ABSENT, lane.at(lane.last) if lane is not None and len(lane.rows) else None)
    done = not operation.pending and not operation.failed
    return AtDivergence(OperationState.COMPLETED if done else OperationState.WAITING, operation)


def time_at(found: Standstill, where: Place) -> int | None:
    """When the first of those that wait in an operation entered it."""
    times = [time for rank in found.at(where) if (time := found.heads[rank].operation.entered)]
    return min(times, default=None)


def name_of(found: Standstill, where: Place) -> str:
    """An operation in words, with its group."""
    group = found.group_board(where)
    operation = next((each for lane in group.lanes.values() if (each := lane.at(where[1])) is not None), None)
    what = operation.call.op if operation is not None else "operation"
    return f"{what} #{where[1]} of group {group.group.description or group.group.name}"


def head_of(found: Standstill, rank: int) -> str:
    """A rank's head in words."""
    head = found.heads[rank].operation
    return f"{named([rank])}: oldest unfinished is {called(head)} of group {head.group}"


def first_of(found: Standstill, places: Iterable[Place]) -> Place:
    """The operation that was entered first."""
    return min(places, key=lambda where: (time_at(found, where) or 0, where))
