"""Who does what in a job that runs and of which nothing was recorded: who waits in a call, who stands elsewhere, who moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from desync.diagnosis.words import named, place, seconds, verb
from desync.model import (
    Activity,
    AtDivergence,
    Call,
    CallSite,
    Certainty,
    ClaimKind,
    Divergence,
    Evidence,
    Group,
    Kind,
    Motion,
    Operation,
    OperationState,
)

DEFAULT_GROUP = "0"
ANY = frozenset({"wait"})
"""Calls that may wait for any operation."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Who does what."""

    evidence: Evidence
    ranks: tuple[int, ...]
    waiting: Mapping[int, Operation]
    """Who stands in a call, or may."""
    proved: tuple[int, ...]
    """Those of them that certainly stand there."""
    still: tuple[int, ...]
    """Who stands in no call."""
    working: tuple[int, ...]
    """Who moves and was in no call."""
    passing: tuple[int, ...]
    """Who moves and was in calls."""
    unknown: tuple[int, ...]
    """Who is alive, and of whom nothing else is known."""
    missing: tuple[int, ...]
    """Who was not seen: it runs on another machine, or has ended."""
    gone: tuple[int, ...]
    """Who was started on this machine and has no process any more."""

    @property
    def all_move(self) -> bool:
        """Whether every rank was seen to move, in lines that are known."""
        seen = {stacks.rank for stacks in self.evidence.stacks}
        others = self.waiting or self.unknown or self.missing or self.gone
        # Those that get on do so with all ranks; one that sleeps in each of its turns is seen sleeping.
        still = any(not self.passing or not self.ran(rank) for rank in self.still)
        return seen.issuperset(self.ranks) and not still and not others

    @property
    def outside(self) -> tuple[int, ...]:
        """Those in no call, moving or not."""
        return tuple(sorted((*self.still, *self.working, *self.passing, *self.unknown)))

    def ran(self, rank: int) -> bool | None:
        """Whether its main thread ran at all; None if that is not known."""
        activity = self.evidence.activities.get(rank)
        return activity.ran if activity is not None else None

    def window(self) -> int:
        """For how long it was looked."""
        begun = [one.since for one in self.evidence.activities.values() if one.since is not None]
        return (self.evidence.observed_at or 0) - min(begun) if begun else 0

    @property
    def only_still_outside(self) -> bool:
        """Whether everybody certainly stands: in a call, or in none."""
        return len(self.proved) == len(self.waiting) and not (
            self.working or self.passing or self.unknown or self.missing or self.gone
        )

    def certainty(self) -> Certainty:
        """Of a finding that everything here speaks for."""
        long = self.window() >= self.evidence.hang_after_ns
        return Certainty.LIKELY if long and not self.missing else Certainty.POSSIBLE


def look_over(evidence: Evidence) -> Scene:
    """The scene that the evidence shows."""
    activities = evidence.activities
    waiting = {trace.rank: trace.operations.row(trace.rank, -1) for trace in evidence.traces if len(trace.operations)}
    gone = tuple(trace.rank for trace in evidence.traces if trace.exit is not None)
    rest = [trace.rank for trace in evidence.traces if trace.rank not in waiting and trace.rank not in gone]
    inside = {rank for claim in evidence.claims if claim.kind is ClaimKind.MOVING and claim.op for rank in claim.ranks}
    moving = [rank for rank in rest if _is(activities.get(rank), Motion.MOVING)]
    known = {trace.rank for trace in evidence.traces}
    return Scene(
        evidence=evidence,
        ranks=tuple(sorted(known.difference(gone))),
        waiting=waiting,
        proved=tuple(rank for rank in waiting if _is(activities.get(rank), Motion.FROZEN)),
        still=tuple(rank for rank in rest if _is(activities.get(rank), Motion.FROZEN)),
        working=tuple(rank for rank in moving if rank not in inside),
        passing=tuple(rank for rank in moving if rank in inside),
        unknown=tuple(rank for rank in rest if _is(activities.get(rank), Motion.UNKNOWN)),
        missing=tuple(rank for rank in range(evidence.job.world_size or 0) if rank not in known),
        gone=gone,
    )


def _is(activity: Activity | None, motion: Motion) -> bool:
    return (activity.motion if activity is not None else Motion.UNKNOWN) is motion


def places_of(scene: Scene) -> list[tuple[int, ...]]:
    """Those that wait, by what they called and from where."""
    found: dict[tuple[str, object], list[int]] = {}
    for rank, operation in scene.waiting.items():
        site = operation.call.site
        found.setdefault((operation.call.op, site.innermost if site is not None else None), []).append(rank)
    return [tuple(ranks) for ranks in found.values()]


def calls_of(scene: Scene) -> list[tuple[int, ...]]:
    """Those that wait, by what they called, most first; who waits for what it began before is left out, and may be with any."""
    found: dict[str, list[int]] = {}
    for rank, operation in scene.waiting.items():
        if operation.call.op not in ANY:
            found.setdefault(operation.call.op, []).append(rank)
    return sorted((tuple(ranks) for ranks in found.values()), key=lambda ranks: (-len(ranks), ranks))


def peers_of(scene: Scene) -> set[int] | None:
    """For whom those wait that wait; None if that is not known of all."""
    peers = [operation.call.peer for operation in scene.waiting.values()]
    return None if None in peers else {peer for peer in peers if peer is not None}


def stands_in(scene: Scene, ranks: tuple[int, ...]) -> str:
    """'ranks 0-1 stand in barrier at train.py:40 in main'."""
    call = scene.waiting[ranks[0]].call
    return f"{named(ranks)} {verb(ranks, 'stands', 'stand')} {inside(call)}"


def inside(call: Call) -> str:
    """'in barrier at train.py:40 in main'."""
    what = "waiting for what was begun before," if call.op in ANY else f"in {call.op}"
    return f"{what} at {place(call.site)}"


def who_waits(scene: Scene) -> str:
    """All that wait, by what they wait in, as a clause."""
    parts = []
    for ranks in places_of(scene):
        call = scene.waiting[ranks[0]].call
        in_it = inside(call).removeprefix("waiting ")
        parts.append(f"{named(ranks)} {verb(ranks, 'waits', 'wait')} {in_it}")
    return " and ".join(parts[:3])


def where_it_is(evidence: Evidence, rank: int) -> str:
    """Where a rank's main thread is in the user's code, and what it waits for."""
    activity = evidence.activities.get(rank)
    reason = f" ({activity.waits_for})" if activity is not None and activity.waits_for else ""
    for stacks in evidence.stacks:
        if stacks.rank == rank and stacks.threads:
            frames = stacks.threads[0].frames
            own = tuple(frame for frame in frames if frame.is_users) or frames[:1]
            return f"at {place(CallSite(own))}{reason}"
    return f"at a line that could not be seen{reason}"


def motions(evidence: Evidence, ranks: Iterable[int]) -> tuple[str, ...]:
    """How these moved, a line for all that moved alike."""
    alike: dict[str, list[int]] = {}
    for rank in ranks:
        alike.setdefault(_motion(evidence, rank), []).append(rank)
    return tuple(f"{verb(same, 'process', 'processes')} of {named(same)}: {text}" for text, same in alike.items())


def _motion(evidence: Evidence, rank: int) -> str:
    activity = evidence.activities.get(rank)
    if activity is None:
        return "not looked at"
    parts = [activity.motion.value, *([activity.process_state] if activity.process_state else [])]
    if activity.cpu_s is not None:
        parts.append(f"{activity.cpu_s:.1f} s of CPU")
    if activity.ran is False:
        parts.append("the main thread did not run at all")
    if activity.since is not None and evidence.observed_at is not None:
        parts.append(f"in {seconds(evidence.observed_at - activity.since)}")
    return ", ".join(parts)


def divergence(scene: Scene, odd: tuple[int, ...]) -> Divergence | None:
    """What is waited for, as the report shows it."""
    waiting = {rank: operation for rank, operation in scene.waiting.items() if rank not in odd}
    if not waiting:
        return None
    first = waiting[min(waiting)]
    trace = scene.evidence.trace(first.rank)
    group = trace.groups[first.group] if trace is not None else Group(first.group, scene.ranks)
    by_rank = {rank: _at(scene, rank, first) for rank in sorted({*group.ranks, *scene.waiting})}
    return Divergence(group, _kind(first), first.seq, first.call.op, by_rank)


def _kind(operation: Operation) -> str:
    if operation.call.op == "init_process_group":
        return "rendezvous"
    return {Kind.P2P: "p2p", Kind.GROUP: "group_creation"}.get(operation.call.kind, "collective")


def _at(scene: Scene, rank: int, first: Operation) -> AtDivergence:
    operation = scene.waiting.get(rank)
    if operation is None:
        return AtDivergence(OperationState.ABSENT)
    same = operation.call.op in (first.call.op, *ANY)
    return AtDivergence(OperationState.WAITING if same else OperationState.MISMATCHED, operation)
