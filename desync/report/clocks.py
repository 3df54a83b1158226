"""The clocks of different machines, compared by the collectives themselves.

A collective in which every rank gets something from every other cannot be over anywhere before the last rank has come, and is
over everywhere at nearly the same moment.  The median difference between two machines' times of completion is the difference
of their clocks, up to the time that a result needs from one to the other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from desync.model import Evidence, Kind, Trace

SYNCHRONISING = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "barrier", "all_to_all"}
)
LOOK_BACK = 4096
"""Rows of one rank that are looked at."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What to add to the times of each node (ns) to have them on the clock of the first."""

    offsets: Mapping[str | None, int]
    unaligned: tuple[str, ...] = ()
    """Nodes of which nothing could be compared: their offset is 0."""

    def offset(self, trace: Trace) -> int:
        """Nanoseconds to add to the times of this rank."""
        return self.offsets.get(trace.node, 0)


def align(evidence: Evidence) -> Clocks:
    """Compare the nodes' clocks through one rank of each; a job on one machine needs nothing."""
    first: dict[str | None, Trace] = {}
    for trace in evidence.traces:
        first.setdefault(trace.node, trace)
    nodes = list(first)
    if len(nodes) < 2:
        return Clocks(dict.fromkeys(nodes, 0))
    ends = {node: dict(_completions(trace)) for node, trace in first.items()}
    offsets: dict[str | None, int] = {nodes[0]: 0}
    # From node to node: two that share no group are compared through a third.
    grown = True
    while grown:
        grown = False
        for node in nodes:
            if node in offsets:
                continue
            difference = _difference(ends, offsets, node)
            if difference is not None:
                offsets[node] = difference
                grown = True
    left = tuple(str(node) for node in nodes if node not in offsets)
    return Clocks({node: offsets.get(node, 0) for node in nodes}, left)


def _completions(trace: Trace) -> Iterable[tuple[tuple[str, int], int]]:
    """When the rank's last synchronising collectives were over, by group and number."""
    table = trace.operations
    for index in range(max(0, len(table) - LOOK_BACK), len(table)):
        call = table.calls[table.call[index]]
        if call.kind is Kind.COLLECTIVE and call.op in SYNCHRONISING and table.completed[index] > 0:
            yield (table.groups[table.group[index]], table.seq[index]), table.completed[index]


def _difference(
    ends: Mapping[str | None, Mapping[tuple[str, int], int]], offsets: Mapping[str | None, int], node: str | None
) -> int | None:
    """What to add on ``node``, through the aligned node with which it has most in common; None if there is none."""
    best: list[int] = []
    for known, offset in offsets.items():
        common = ends[known].keys() & ends[node].keys()
        if len(common) > len(best):
            best = [ends[known][key] + offset - ends[node][key] for key in common]
    return round(statistics.median(best)) if best else None
