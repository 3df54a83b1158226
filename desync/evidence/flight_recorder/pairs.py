"""Numbers for sends and recvs: the place in their pair of ranks, the same on both sides.

A dump counts p2p for each group and rank, sends and recvs together; two ranks' numbers cannot be compared.  Rings begin at
different places, so counting from their beginning does not do either.  What both sides have in common is what has finished:
the newest finished send of a pair is the newest finished recv, and all others are counted from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from desync.model import Claim, ClaimKind, Group, Kind, OperationTable

_Pair = tuple[str, int, int]


@dataclass(slots=True)
class _Side:
    """One rank's sends to (or recvs from) another in one group: rows, oldest first."""

    table: OperationTable
    rows: list[int] = field(default_factory=list)
    finished: int = 0
    complete: bool = True
    """Whether the ring still holds the first."""


def number_pairs(tables: Mapping[int, OperationTable], dropped: Mapping[int, int]) -> None:
    """Set the sequence numbers of all p2p rows, counted from 1 for each (group, source, destination)."""
    pairs: dict[_Pair, dict[bool, _Side]] = {}
    for rank, table in tables.items():
        for pair, sends, row in _p2p_rows(rank, table):
            sides = pairs.setdefault(pair, {})
            side = sides.get(sends)
            if side is None:
                side = sides[sends] = _Side(table, complete=not dropped.get(rank, 0))
            side.rows.append(row)
            if table.completed[row] or table.returned[row]:
                side.finished = len(side.rows)
    for sides in pairs.values():
        _number(list(sides.values()))


def _p2p_rows(rank: int, table: OperationTable) -> Iterator[tuple[_Pair, bool, int]]:
    routes: dict[int, tuple[bool, int]] = {
        index: (call.op == "send", -1 if call.peer is None else call.peer)
        for index, call in enumerate(table.calls)
        if call.kind is Kind.P2P
    }
    if not routes:
        return
    for row in [row for row, call in enumerate(table.call) if call in routes]:
        sends, peer = routes[table.call[row]]
        group = table.groups[table.group[row]]
        yield (group, rank, peer) if sends else (group, peer, rank), sends, row


def _number(sides: list[_Side]) -> None:
    both_complete = all(side.complete for side in sides)
    newest = max(side.finished for side in sides)
    for side in sides:
        first = 1 if both_complete else newest - side.finished + 1
        for place, row in enumerate(side.rows):
            side.table.seq[row] = first + place


def behind(tables: Mapping[int, OperationTable], groups: Mapping[int, Mapping[str, Group]]) -> list[Claim]:
    """Ranks that have made fewer sends and recvs than all others in the same place of the same kind of group.

    The stages of a pipeline do the same for each of its tensor ranks, so that their counters agree at the same operation.
    Looked at is the oldest unfinished p2p operation of each rank, with the counter that the dump gives it; to be asked before
    :func:`number_pairs` replaces the counters.
    """
    places: dict[tuple[str, int, int], dict[int, int]] = {}
    for rank, table in tables.items():
        found = _oldest_open(rank, table, groups[rank])
        if found is not None:
            place, counter = found
            places.setdefault(place, {})[rank] = counter
    claims = []
    for counters in places.values():
        most = max(counters.values())
        late = tuple(sorted(rank for rank, counter in counters.items() if counter == most - 1))
        others = [rank for rank, counter in counters.items() if counter == most]
        if late and len(late) + len(others) == len(counters) and len(late) < len(others):
            text = (
                f"made one send or recv fewer than ranks {', '.join(map(str, sorted(others)[:8]))}, which do the same elsewhere"
            )
            claims.append(Claim(ClaimKind.BEHIND, late, text))
    return claims


def _open_rows(table: OperationTable) -> Iterator[int]:
    """The rows of what has not finished; the search for them is array's own."""
    row = -1
    while True:
        try:
            row = table.completed.index(0, row + 1)
        except ValueError:
            return
        yield row


def _oldest_open(rank: int, table: OperationTable, groups: Mapping[str, Group]) -> tuple[tuple[str, int, int], int] | None:
    for row in _open_rows(table):
        call = table.call[row]
        if table.calls[call].kind is not Kind.P2P:
            continue
        group, peer = groups.get(table.groups[table.group[row]]), table.calls[call].peer
        if group is None or group.description is None or peer not in group.ranks or rank not in group.ranks:
            return None
        kind = f"{table.calls[call].op} {group.description}"
        return (kind, group.ranks.index(rank), group.ranks.index(peer)), table.seq[row]
    return None
