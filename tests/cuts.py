"""Evidence with parts cut away: what a ring dropped, what no recorder marked, what nobody sampled, whose journal is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from desync.model import Evidence, OperationTable, Progress, Trace

LAST = 50
"""So many operations of each rank are left by :func:`only_the_newest`."""
COLUMNS = ("call", "group", "seq", "thread", "entered", "returned", "completed")

Cut = Callable[[Evidence, random.Random], Evidence]


def no_marks(evidence: Evidence, rng: random.Random) -> Evidence:
    """No rank said how far it had come, nor that it raised."""
    return replace(evidence, traces=tuple(replace(trace, marks=(), progress=Progress()) for trace in evidence.traces))


def no_stacks(evidence: Evidence, rng: random.Random) -> Evidence:
    """Nobody was allowed to look into the processes."""
    return replace(evidence, stacks=())


def not_sampled(evidence: Evidence, rng: random.Random) -> Evidence:
    """Nobody watched whether the processes moved."""
    return replace(evidence, stacks=(), activities={})


def only_the_newest(evidence: Evidence, rng: random.Random, keep: int = LAST) -> Evidence:
    """The rings were small: the newest operations of each rank, and the marks among them."""
    return replace(evidence, traces=tuple(_newest(trace, keep) for trace in evidence.traces))


def _newest(trace: Trace, keep: int) -> Trace:
    cut = max(0, len(trace.operations) - keep)
    columns = {name: getattr(trace.operations, name)[cut:] for name in COLUMNS}
    # As a reader finds it: only the calls and groups that are left are known.
    calls = list(dict.fromkeys(columns["call"]))
    groups = list(dict.fromkeys(columns["group"]))
    for name, kept in (("call", calls), ("group", groups)):
        numbers = {old: new for new, old in enumerate(kept)}
        columns[name] = type(columns[name])("q", (numbers[old] for old in columns[name]))
    table = OperationTable(
        calls=tuple(trace.operations.calls[old] for old in calls),
        groups=tuple(trace.operations.groups[old] for old in groups),
        **columns,
    )
    dropped = trace.dropped + cut
    return replace(trace, operations=table, dropped=dropped, marks=tuple(m for m in trace.marks if m.after >= dropped))


def two_missing(evidence: Evidence, rng: random.Random) -> Evidence:
    """The journals of two ranks are lost (of one, where there are only two): they may have run elsewhere."""
    ranks = [trace.rank for trace in evidence.traces]
    lost = rng.sample(ranks, min(2, len(ranks) - 1))
    return without(evidence, lost)


def without(evidence: Evidence, lost: list[int]) -> Evidence:
    """Nothing is known of these ranks."""
    return replace(
        evidence,
        traces=tuple(trace for trace in evidence.traces if trace.rank not in lost),
        activities={rank: activity for rank, activity in evidence.activities.items() if rank not in lost},
        stacks=tuple(stacks for stacks in evidence.stacks if stacks.rank not in lost),
    )


CUTS: dict[str, Cut] = {
    "no marks": no_marks,
    "no stacks": no_stacks,
    "not sampled": not_sampled,
    f"only the newest {LAST}": only_the_newest,
    "two journals missing": two_missing,
}


def all_cuts() -> Iterator[tuple[str, ...]]:
    """Each cut, and each two of them together."""
    for size in (1, 2):
        yield from combinations(CUTS, size)


def cut(evidence: Evidence, names: tuple[str, ...], seed: int) -> Evidence:
    """The evidence with these parts cut away."""
    for name in names:
        evidence = CUTS[name](evidence, random.Random(seed))
    return evidence
