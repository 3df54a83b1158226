"""All ranks' operations side by side: for each group, one lane a rank."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from desync.diagnosis.compare import Keys
from desync.model import Evidence, Group, Kind, Operation, Trace

CREATION = "calls about groups"
"""Name of the lane that holds the calls about groups that all ranks make together (:data:`TOGETHER`)."""

TOGETHER = frozenset({"init_process_group", "new_group"})
"""A group may be split, made locally or destroyed by its members alone; these two all ranks must call, in one order."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank's collectives in one group, oldest first; what the ring has dropped is missing at the beginning."""

    trace: Trace
    first: int
    """Sequence number of the oldest one held."""
    rows: array[int]
    """Rows of the trace's table."""
    keys: array[int]
    """Numbers of what must agree, see :class:`desync.diagnosis.compare.Keys`."""

    @property
    def rank(self) -> int:
        """The rank."""
        return self.trace.rank

    @property
    def last(self) -> int:
        """Sequence number of the newest one."""
        return self.first + len(self.rows) - 1

    def at(self, seq: int) -> Operation | None:
        """The operation with this sequence number, if it is held."""
        index = seq - self.first
        return self.trace.operations.row(self.rank, self.rows[index]) if 0 <= index < len(self.rows) else None

    def key(self, seq: int) -> int | None:
        """Its key."""
        index = seq - self.first
        return self.keys[index] if 0 <= index < len(self.keys) else None

    def site(self, seq: int) -> int | None:
        """A number for its call (with its call site), equal within this trace."""
        index = seq - self.first
        return self.trace.operations.call[self.rows[index]] if 0 <= index < len(self.rows) else None


@dataclass(frozen=True, slots=True)
class GroupBoard:
    """The lanes of one group.  Ranks of which nothing is known are in ``unseen``."""

    group: Group
    lanes: Mapping[int, Lane]
    unseen: tuple[int, ...]
    kind: str = "collective"
    """What report.json calls a divergence here: collective, p2p or group_creation."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A direction between two ranks of a group; its sends and its recvs are lanes that must keep up with each other."""

    group: str
    source: int
    destination: int


Lanes = Mapping["str | Pair", Lane]
"""A rank's lanes by group or pair."""


@dataclass(slots=True)
class _Growing:
    rows: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("q"))
    first: int = 1


@dataclass(frozen=True, slots=True)
class Board:
    """The whole job."""

    evidence: Evidence
    traces: Mapping[int, Trace]
    groups: tuple[GroupBoard, ...]

    def pending(self, rank: int) -> list[Operation]:
        """The operations that a rank has entered and that have not come to their end, oldest first."""
        trace = self.traces[rank]
        return [operation for operation in trace.operations.rows(rank) if operation.pending]


def lay_out(evidence: Evidence) -> Board:
    """The board of a job."""
    keys = Keys()
    traces = {trace.rank: trace for trace in evidence.traces}
    members = _all_groups(evidence)
    by_rank = {rank: _lanes(trace, keys) for rank, trace in traces.items()}
    boards = [_group_board(group, group.name, by_rank, traces) for group in members]
    pairs = {name: lane for lanes in by_rank.values() for name, lane in lanes.items() if isinstance(name, Pair)}
    for pair in pairs:
        if pair.source < 0:
            continue
        ends = Group(pair.group, (pair.source, pair.destination))
        boards.append(_group_board(ends, pair, by_rank, traces))
    return Board(evidence, traces, tuple(board for board in boards if board.lanes))


def _group_board(group: Group, name: str | Pair, by_rank: Mapping[int, Lanes], traces: Mapping[int, Trace]) -> GroupBoard:
    lanes = {}
    for rank in group.ranks:
        if (trace := traces.get(rank)) is not None and (lane := by_rank[rank].get(name) or _empty(trace)) is not None:
            lanes[rank] = lane
    unseen = tuple(rank for rank in group.ranks if rank not in traces)
    kind = "p2p" if isinstance(name, Pair) else "group_creation" if name == CREATION else "collective"
    return GroupBoard(group, lanes, unseen, kind)


def _all_groups(evidence: Evidence) -> list[Group]:
    """Every group that some rank knows, as the ranks that know it by that name see it; and the lane of group calls."""
    found: dict[tuple[str, tuple[int, ...]], Group] = {}
    for trace in evidence.traces:
        for group in trace.groups.values():
            found.setdefault((group.name, group.ranks), group)
    world = evidence.job.world_size or max((trace.world_size or trace.rank + 1 for trace in evidence.traces), default=0)
    calls = Group(CREATION, tuple(range(world)))
    return [group for group in found.values() if group.ranks] + [calls]


def _lanes(trace: Trace, keys: Keys) -> Lanes:
    """A rank's operations by group, its sends and recvs by pair."""
    table = trace.operations
    numbers = [keys.number(call) for call in table.calls]
    # Which lane a call belongs to depends on its kind (and peer) and its group; there are few of these, and they are counted so
    # that the loop compares small numbers.
    routes = [(call.kind, call.op, call.peer) if call.kind is Kind.P2P else (call.kind, "", None) for call in table.calls]
    counted = {route: number for number, route in enumerate(dict.fromkeys(routes))}
    route_of = [counted[route] * len(table.groups) for route in routes]
    alone = {index for index, call in enumerate(table.calls) if call.kind is Kind.GROUP and call.op not in TOGETHER}
    together = {index for index, call in enumerate(table.calls) if call.kind is Kind.GROUP and call.op in TOGETHER}
    growing: dict[str | Pair, _Growing] = {}
    targets: dict[int, _Growing] = {}
    left_out = 0
    for row, (call, group, seq) in enumerate(zip(table.call, table.group, table.seq, strict=True)):
        if call in alone:
            left_out += 1
            continue
        if call in together:
            seq -= left_out
        lane = targets.get(route_of[call] + group)
        if lane is None:
            name = _lane_name(trace.rank, table.groups[group], routes[call])
            lane = targets[route_of[call] + group] = growing.setdefault(name, _Growing(first=seq))
        if seq != lane.first + len(lane.rows):
            # A gap (torn records): what lies before it cannot be placed by counting.
            lane.rows, lane.keys, lane.first = array("q"), array("q"), seq
        lane.rows.append(row)
        lane.keys.append(numbers[call])
    return {name: Lane(trace, lane.first, lane.rows, lane.keys) for name, lane in growing.items()}


def _lane_name(rank: int, group: str, route: tuple[Kind, str, int | None]) -> str | Pair:
    kind, op, peer = route
    if kind is Kind.GROUP:
        return CREATION
    if kind is Kind.COLLECTIVE:
        return group
    if peer is None:
        return Pair(group, -1, rank)  # a recv from any: it has no partner that could be counted
    return Pair(group, rank, peer) if op == "send" else Pair(group, peer, rank)


def _empty(trace: Trace) -> Lane | None:
    """The lane of a rank that has done nothing in a group; None if its ring may have dropped it."""
    return None if trace.dropped else Lane(trace, 1, array("q"), array("q"))


def first_difference(one: Lane, other: Lane) -> int | None:
    """The first sequence number at which two lanes hold different keys; None if they agree wherever both hold one."""
    low, high = max(one.first, other.first), min(one.last, other.last)
    if low > high:
        return None
    left = one.keys[low - one.first : high - one.first + 1]
    right = other.keys[low - other.first : high - other.first + 1]
    if left == right:
        return None
    return _scan(left, right, low)


def _scan(left: array[int], right: array[int], low: int) -> int | None:
    """Halve down to the first unequal pair; equal halves are compared at the speed of memory."""
    index, length = 0, len(left)
    while index < length:
        step = _equal_prefix(left, right, index)
        if step >= length:
            return None
        if left[step] and right[step]:
            return low + step
        index = step + 1  # one of the two is not known: it agrees with anything
    return None


def _equal_prefix(left: array[int], right: array[int], start: int) -> int:
    """Index of the first difference from ``start`` on; the length if there is none."""
    return start + bisect_left(
        range(1, len(left) - start + 1), True, key=lambda size: left[start : start + size] != right[start : start + size]
    )
