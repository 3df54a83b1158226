"""Who makes the others wait: how late each rank comes to the collectives that all do together."""

from __future__ import annotations

import statistics
from collections import Counter

from desync.model import Evidence, Kind, Trace
from desync.report.clocks import Clocks, align
from desync.report.model import Lateness, LatenessEntry
from desync.report.text import NAME, bounded

OPERATIONS = 200
"""So many of the last common collectives are compared."""


def build_lateness(evidence: Evidence) -> Lateness | None:
    """Over the last collectives of the largest group; None if its ranks have none in common."""
    group = _largest(evidence)
    if group is None:
        return None
    members = [trace for trace in evidence.traces if group in trace.operations.groups]
    if len(members) < 2:
        return None
    clocks = align(evidence)
    arrivals = {trace.rank: _arrivals(trace, group, clocks) for trace in members}
    common = set.intersection(*(set(times) for times in arrivals.values()))
    chosen = sorted(common)[-OPERATIONS:]
    if not chosen:
        return None
    return Lateness(bounded(group, NAME), len(chosen), _entries(arrivals, chosen), aligned=not clocks.unaligned)


def _largest(evidence: Evidence) -> str | None:
    """The group of most ranks; of several the one in which most was done."""
    groups = {name: len(group.ranks) for trace in evidence.traces for name, group in trace.groups.items()}
    used = {name for trace in evidence.traces[:1] for name in trace.operations.groups}
    ranked = sorted(groups, key=lambda name: (name in used, groups[name], name == "default_pg"), reverse=True)
    return ranked[0] if ranked else None


def _arrivals(trace: Trace, group: str, clocks: Clocks) -> dict[int, int]:
    """When the rank entered its last finished collectives of the group, by number."""
    table, offset = trace.operations, clocks.offset(trace)
    numbers = {number for number, name in enumerate(table.groups) if name == group}
    found: dict[int, int] = {}
    for index in range(len(table) - 1, -1, -1):
        call = table.calls[table.call[index]]
        if table.group[index] not in numbers or call.kind is not Kind.COLLECTIVE:
            continue
        # Where completion cannot be known the call's return must do; what was never over says nothing about the usual pace.
        done = table.completed[index] > 0 if call.completion_known else bool(table.returned[index])
        if table.entered[index] and done:
            found[table.seq[index]] = table.entered[index] + offset
        if len(found) >= 2 * OPERATIONS:
            break
    return found


def _entries(arrivals: dict[int, dict[int, int]], chosen: list[int]) -> tuple[LatenessEntry, ...]:
    late: dict[int, list[int]] = {rank: [] for rank in arrivals}
    alone: dict[int, int] = dict.fromkeys(arrivals, 0)
    longest: dict[int, tuple[int, int | None]] = dict.fromkeys(arrivals, (0, None))
    last: Counter[int] = Counter()
    for seq in chosen:
        times = {rank: seen[seq] for rank, seen in arrivals.items()}
        *_, before, latest = sorted(times.values())
        first = min(times.values())
        for rank, time in times.items():
            late[rank].append(time - first)
        hindmost = next(rank for rank, time in times.items() if time == latest)
        last[hindmost] += 1
        alone[hindmost] += latest - before
        if latest - before > longest[hindmost][0]:
            longest[hindmost] = (latest - before, seq)
    return tuple(
        LatenessEntry(
            rank=rank,
            median_s=_s(statistics.median(ns)),
            worst_s=_s(max(ns)),
            last=last[rank],
            alone_s=_s(alone[rank]),
            longest_s=_s(longest[rank][0]),
            longest_seq=longest[rank][1],
        )
        for rank, ns in sorted(late.items())
    )


def _s(nanoseconds: float) -> float:
    return round(nanoseconds / 1e9, 6)
