"""Who waits for whom: each operation that ranks are inside, with the members of its group that have not come to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from desync.model import Call, Divergence, Evidence, Group, Kind, Operation, OperationState, Trace
from desync.report.model import WaitEntry
from desync.report.text import NAME, bounded

LOOK_BACK = 2048
"""Rows of each rank that are looked at, newest first: what it waits for is among the last."""
MAX_EDGES = 512


@dataclass(slots=True)
class _Frontier:
    """How far one rank has come."""

    open: dict[str, Operation] = field(default_factory=dict)
    """By group, the first collective that it is still inside (or that failed under it)."""
    last: dict[str, int] = field(default_factory=dict)
    """By group, the number of the last collective that it entered."""
    pairs: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """By group, source and destination, the number of the last send or recv."""
    open_pairs: list[Operation] = field(default_factory=list)


def build_waits(evidence: Evidence, divergence: Divergence | None) -> tuple[WaitEntry, ...]:
    """The edges, those of most ranks first; ranks that wait in the same operation for the same others share one."""
    frontiers = {trace.rank: _frontier(trace) for trace in evidence.traces}
    groups = {name: group for trace in evidence.traces for name, group in trace.groups.items()}
    edges: dict[tuple[tuple[int, ...], Kind, str, int, str], list[int]] = {}
    absent = _Absent(frontiers, groups)
    for rank, frontier in frontiers.items():
        for operation, missing in absent.missed(rank, frontier):
            key = (missing, operation.call.kind, operation.group, operation.seq, operation.call.op)
            edges.setdefault(key, []).append(rank)
    made = [
        WaitEntry(tuple(sorted(ranks)), missing, kind, bounded(group, NAME), seq, bounded(op, NAME))
        for (missing, kind, group, seq, op), ranks in edges.items()
    ]
    made += _creation(divergence)
    return tuple(sorted(made, key=lambda edge: (-len(edge.ranks), edge.ranks, edge.group))[:MAX_EDGES])


def _frontier(trace: Trace) -> _Frontier:
    frontier, table = _Frontier(), trace.operations
    start = max(0, len(table) - LOOK_BACK)
    newest = zip(reversed(table.call[start:]), reversed(table.group[start:]), reversed(table.completed[start:]), strict=True)
    seen: set[tuple[int, int]] = set()
    for back, (number, group_number, completed) in enumerate(newest, 1):
        if completed > 0 and (number, group_number) in seen:
            continue  # a newer operation of the same call has said how far the rank has come
        seen.add((number, group_number))
        _take(frontier, trace, len(table) - back)
    return frontier


def _take(frontier: _Frontier, trace: Trace, row: int) -> None:
    """Note an operation of a rank; newer ones have been noted before."""
    table = trace.operations
    call, group = table.calls[table.call[row]], table.groups[table.group[row]]
    if call.kind is Kind.COLLECTIVE:
        frontier.last.setdefault(group, table.seq[row])
        if table.completed[row] <= 0 and _is_open(operation := table.row(trace.rank, row)):
            frontier.open[group] = operation
    elif call.kind is Kind.P2P and call.peer is not None:
        frontier.pairs.setdefault(_pair_of(trace.rank, group, call), table.seq[row])
        if table.completed[row] <= 0 and _is_open(operation := table.row(trace.rank, row)):
            frontier.open_pairs.append(operation)


def _is_open(operation: Operation) -> bool:
    return operation.pending or operation.failed


def _pair(operation: Operation) -> tuple[str, int, int]:
    """The pair of ranks, source first."""
    return _pair_of(operation.rank, operation.group, operation.call)


def _pair_of(rank: int, group: str, call: Call) -> tuple[str, int, int]:
    peer = -1 if call.peer is None else call.peer
    return (group, peer, rank) if "recv" in call.op else (group, rank, peer)


class _Absent:
    """Who has not come to an operation, found once for all that wait in it."""

    def __init__(self, frontiers: Mapping[int, _Frontier], groups: Mapping[str, Group]) -> None:
        self._frontiers = frontiers
        self._groups = groups
        self._known: dict[tuple[str, int, str], tuple[int, ...]] = {}

    def missed(self, rank: int, frontier: _Frontier) -> Iterable[tuple[Operation, tuple[int, ...]]]:
        """Each operation that a rank is inside, with the ranks that it misses there."""
        for operation in frontier.open.values():
            missing = self._of(operation)
            if rank in missing:  # its newer operations tell another story than this one
                missing = tuple(other for other in missing if other != rank)
            if missing:
                yield operation, missing
        for operation in frontier.open_pairs:
            peer = operation.call.peer
            other = self._frontiers.get(peer) if peer is not None else None
            if peer is not None and (other is None or other.pairs.get(_pair(operation), 0) < operation.seq):
                yield operation, (peer,)

    def _of(self, operation: Operation) -> tuple[int, ...]:
        key = (operation.group, operation.seq, operation.call.op)
        if key not in self._known:
            group = self._groups.get(operation.group)
            members = group.ranks if group is not None else ()
            self._known[key] = tuple(sorted(rank for rank in members if _behind(self._frontiers.get(rank), operation)))
        return self._known[key]


def _behind(frontier: _Frontier | None, operation: Operation) -> bool:
    """Whether a rank has not come to that operation; one that called another thing at its place has not either."""
    if frontier is None:
        return True
    there = frontier.open.get(operation.group)
    other = there is not None and there.seq == operation.seq and there.call.op != operation.call.op
    return other or frontier.last.get(operation.group, 0) < operation.seq


def _creation(divergence: Divergence | None) -> list[WaitEntry]:
    """The edge of a creation of a group, or of a rendezvous, to which some did not come."""
    if divergence is None or divergence.kind in ("collective", "p2p"):
        return []
    waiting = [rank for rank, at in divergence.by_rank.items() if at.state is OperationState.WAITING]
    absent = [rank for rank, at in divergence.by_rank.items() if at.state is not OperationState.WAITING]
    if not waiting or not absent:
        return []
    group, op = bounded(divergence.group.name, NAME), bounded(divergence.op, NAME)
    return [WaitEntry(tuple(sorted(waiting)), tuple(sorted(absent)), Kind.GROUP, group, divergence.seq, op)]
