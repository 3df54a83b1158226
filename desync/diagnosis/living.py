"""The diagnosis of a job that runs now and of which nothing was recorded: stacks of all ranks, and whether they moved.

Two looks a few seconds apart show who stands and who goes on; they do not show for how long, nor which operation of its group a
call is.  So nothing here is more than likely, and where two readings are open nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from desync.diagnosis.advice import advice
from desync.diagnosis.verdict import diagnose
from desync.diagnosis.words import named, place, seconds, verb
from desync.model import (
    Activity,
    AtDivergence,
    CallSite,
    Cause,
    Certainty,
    ClaimKind,
    Diagnosis,
    Divergence,
    Evidence,
    Finding,
    Group,
    Kind,
    Motion,
    Operation,
    OperationState,
    RankState,
    Status,
)

DEFAULT_GROUP = "0"
AWAITED_NS = 1_000_000_000
"""A rank that others have waited for so long is spoken of; for less, every rank is waited for all the time."""

_LOOK_LONGER = "Look again, for longer (--for 15): a rank that then still stands there will not come by itself."
_OTHER_MACHINES = "Run `desync inspect` on the other machines of the job as well: whoever is awaited may be there."


def interpret_living(evidence: Evidence) -> Diagnosis:
    """The findings for a job that runs; with records of its operations they are the watcher's."""
    if is_recorded(evidence):
        return _recorded(evidence)
    scene = _scene(evidence)
    found = _findings(scene)
    return Diagnosis(
        findings=tuple(found),
        status=found[0].status if found else Status.HEALTHY if scene.all_move else Status.UNKNOWN,
        states={rank: _state(scene, rank) for rank in (*scene.ranks, *scene.gone)},
        notes=_doings(scene, found),
    )


def is_recorded(evidence: Evidence) -> bool:
    """Whether operations were recorded as they were entered, and not only seen in stacks."""
    return any(entered for trace in evidence.traces for entered in trace.operations.entered)


def summary(evidence: Evidence) -> str:
    """What was seen, in a sentence, where there is no finding."""
    scene = _scene(evidence)
    looked = f"in {seconds(scene.window())} of looking"
    if scene.all_move:
        who = "The only rank moves" if len(scene.ranks) == 1 else f"All {len(scene.ranks)} ranks move"
        return f"{who}: no rank stood still {looked}."
    if not evidence.stacks:
        return f"No stack could be read, so which calls the ranks are in is not known ({_counts(scene)} {looked})."
    return f"No rank is odd, as far as two looks can tell: {_counts(scene)} {looked}."


def _counts(scene: _Scene) -> str:
    sets = (
        ((*scene.working, *scene.passing), "moved", "moved"),
        (tuple(scene.waiting), "was in a call of torch.distributed", "were in calls of torch.distributed"),
        (scene.still, "stood still", "stood still"),
        (scene.unknown, "may have moved or not", "may have moved or not"),
        (scene.missing, "was not seen", "were not seen"),
    )
    return ", ".join(f"{named(ranks)} {verb(ranks, one, many)}" for ranks, one, many in sets if ranks)


def _state(scene: _Scene, rank: int) -> RankState:
    if rank in scene.gone:
        return RankState.EXITED
    return RankState.WAITING if rank in scene.waiting else RankState.RUNNING


def _doings(scene: _Scene, found: Iterable[Finding]) -> tuple[str, ...]:
    """What each rank does of which no finding speaks, equal ones together."""
    told = {rank for finding in found for rank in finding.culprit_ranks}
    texts: dict[str, list[int]] = {}
    for claim in scene.evidence.claims:
        for rank in sorted({*claim.ranks}.difference(told)):
            texts.setdefault(claim.text, []).append(rank)
    for rank in sorted({*scene.still}.difference(told)):
        texts.setdefault(f"stands still {_where(scene.evidence, rank)}", []).append(rank)
    return tuple(f"{named(ranks)}: {text}" for text, ranks in texts.items())


# --- with records


def _recorded(evidence: Evidence) -> Diagnosis:
    """As the watcher would say it; a rank that has been awaited for long is named, if with less certainty, without waiting."""
    base = diagnose(evidence)
    if base.findings:
        return base
    found = [
        _awaited(evidence, rank, waiters, waited)
        for rank, waiters in base.awaiting.items()
        if (waited := _waited(evidence, waiters)) is not None and waited >= AWAITED_NS
    ]
    kept = [finding for finding in found if finding is not None]
    if not kept or len({finding.cause for finding in kept}) > 1:
        return base
    return replace(base, findings=tuple(kept), status=kept[0].status)


def _waited(evidence: Evidence, waiters: Iterable[int]) -> int | None:
    """For how long the last of these has been in the operation in which it is."""
    times = []
    for rank in waiters:
        trace = evidence.trace(rank)
        last = trace.operations.row(rank, -1) if trace is not None and len(trace.operations) else None
        if last is not None and last.pending and last.entered is not None:
            times.append(last.entered)
    return evidence.observed_at - max(times) if times and evidence.observed_at is not None else None


def _awaited(evidence: Evidence, rank: int, waiters: tuple[int, ...], waited: int) -> Finding | None:
    activity = evidence.activities.get(rank)
    if activity is None or activity.motion is Motion.UNKNOWN:
        return None
    still = activity.motion is Motion.FROZEN
    where = _where(evidence, rank)
    what = f"stands still outside of any collective, {where}" if still else f"is late but at work, {where}"
    cause = Cause.STALLED_RANK if still else Cause.SLOW_RANK
    return Finding(
        status=Status.HANG if still else Status.SLOW,
        cause=cause,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=(rank,),
        summary=f"Rank {rank} {what}; {named(waiters)} {verb(waiters, 'has', 'have')} waited for {seconds(waited)}.",
        advice=f"{advice(cause)} {_LOOK_LONGER}" if still else advice(cause),
        evidence=_motions(evidence, [rank]),
    )


# --- without records


@dataclass(frozen=True, slots=True)
class _Scene:
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
        return seen.issuperset(self.ranks) and not (
            self.waiting or self.still or self.unknown or self.missing or self.gone
        )

    @property
    def outside(self) -> tuple[int, ...]:
        """Those in no call, moving or not."""
        return tuple(sorted((*self.still, *self.working, *self.passing, *self.unknown)))

    def window(self) -> int:
        """For how long it was looked."""
        begun = [one.since for one in self.evidence.activities.values() if one.since is not None]
        return (self.evidence.observed_at or 0) - min(begun) if begun else 0

    def certainty(self) -> Certainty:
        """Of a finding that everything here speaks for."""
        long = self.window() >= self.evidence.hang_after_ns
        return Certainty.LIKELY if long and not self.missing else Certainty.POSSIBLE


def _scene(evidence: Evidence) -> _Scene:
    activities = evidence.activities
    waiting = {trace.rank: trace.operations.row(trace.rank, -1) for trace in evidence.traces if len(trace.operations)}
    gone = tuple(trace.rank for trace in evidence.traces if trace.exit is not None)
    rest = [trace.rank for trace in evidence.traces if trace.rank not in waiting and trace.rank not in gone]
    inside = {rank for claim in evidence.claims if claim.kind is ClaimKind.MOVING and claim.op for rank in claim.ranks}
    moving = [rank for rank in rest if _is(activities.get(rank), Motion.MOVING)]
    known = {trace.rank for trace in evidence.traces}
    return _Scene(
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


def _findings(scene: _Scene) -> list[Finding]:
    if not scene.waiting or scene.passing:
        return []  # nobody waits, or whoever waits does so while others get on with each other
    if scene.outside:
        return _somebody_is_outside(scene)
    if scene.gone:
        return [_without_them(scene)]
    if any(operation.call.kind is Kind.P2P for operation in scene.waiting.values()):
        return _between_two(scene)
    if len(_calls(scene)) > 1:
        return _different_calls(scene)
    return _together(scene)


def _calls(scene: _Scene) -> dict[tuple[str, object], tuple[int, ...]]:
    """The ranks by what they called and from where; those that wait for something begun earlier are with all, or with none."""
    found: dict[tuple[str, object], list[int]] = {}
    for rank, operation in scene.waiting.items():
        site = operation.call.site
        found.setdefault((operation.call.op, site.innermost if site is not None else None), []).append(rank)
    told = {key: tuple(ranks) for key, ranks in found.items() if key[0] not in ANY}
    if len(told) > 1:
        return told
    return {next(iter(told or found)): tuple(sorted(scene.waiting))}


ANY = frozenset({"wait"})
"""Calls that may wait for any operation."""


def _somebody_is_outside(scene: _Scene) -> list[Finding]:
    """Ranks stand in calls and others do not: it is these that are awaited, if they belong to what is waited for."""
    still = scene.still if scene.proved else tuple(rank for rank in scene.still if _never_ran(scene, rank))
    late = scene.working if scene.proved else ()
    peers = _peers(scene)
    if peers is not None:
        still, late = (tuple(rank for rank in ranks if rank in peers) for ranks in (still, late))
    if not still and not late:
        return []
    doubt = _doubt(scene, still, late)
    if doubt is not None:
        return [_undecided(scene, doubt)]
    return [_odd(scene, still or late, moves=not still)]


def _peers(scene: _Scene) -> set[int] | None:
    """For whom those wait that wait; None if that is not known of all."""
    peers = [operation.call.peer for operation in scene.waiting.values()]
    return None if None in peers else {peer for peer in peers if peer is not None}


def _never_ran(scene: _Scene, rank: int) -> bool:
    activity = scene.evidence.activities.get(rank)
    return activity is not None and activity.ran is False


def _doubt(scene: _Scene, still: tuple[int, ...], late: tuple[int, ...]) -> str | None:
    """Why nobody can be blamed; None if nothing speaks against it."""
    odd = still or late
    if any(operation.group != DEFAULT_GROUP for operation in scene.waiting.values()):
        return "they wait in a group whose members cannot be seen from outside"
    if len(odd) > len(scene.waiting):
        return "more ranks are outside than wait, and they may be the ones that are right"
    if scene.gone:
        return f"{named(scene.gone)} {verb(scene.gone, 'has', 'have')} no process any more"
    if (still and late) or scene.unknown:
        others = sorted({*scene.outside}.difference(still))
        return f"{named(others)} {verb(others, 'is', 'are')} outside as well"
    return None


def _odd(scene: _Scene, odd: tuple[int, ...], *, moves: bool) -> Finding:
    evidence = scene.evidence
    where = list(dict.fromkeys(_where(evidence, rank) for rank in odd))
    at = where[0] if len(where) == 1 else f"{named(odd[:1])} {where[0]}"
    cause = Cause.SLOW_RANK if moves else Cause.STALLED_RANK
    is_, stands = verb(odd, "is", "are"), verb(odd, "stands", "stand")
    did = f"{is_} in no collective and at work, {at}" if moves else f"{stands} still outside of any collective, {at}"
    advices = [advice(cause), *([] if scene.certainty() is Certainty.LIKELY or moves else [_LOOK_LONGER])]
    return Finding(
        status=Status.SLOW if moves else Status.HANG,
        cause=cause,
        certainty=scene.certainty(),
        culprit_ranks=odd,
        summary=f"{_capital(named(odd))} {did}; {_waits(scene)}.",
        advice=" ".join([*advices, *([_OTHER_MACHINES] if scene.missing else [])]),
        evidence=(*_motions(evidence, odd), *_motions(evidence, scene.waiting)),
        divergence=_divergence(scene, odd),
    )


def _undecided(scene: _Scene, doubt: str) -> Finding:
    outside = scene.outside
    where = "; ".join(f"{named([rank])} {_moves(scene, rank)}, {_where(scene.evidence, rank)}" for rank in outside[:4])
    return Finding(
        status=Status.UNKNOWN,
        cause=Cause.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=f"{_capital(_waits(scene))}; who is awaited cannot be told: {doubt}. Outside: {where}.",
        advice=" ".join([_LOOK_LONGER, *([_OTHER_MACHINES] if scene.missing else [])]),
        evidence=_motions(scene.evidence, outside),
        divergence=_divergence(scene, ()),
    )


def _different_calls(scene: _Scene) -> list[Finding]:
    """All ranks stand in calls that cannot meet: the few are odd, if the calls belong to one group."""
    if len(scene.proved) < len(scene.waiting):
        return []
    calls = sorted(_calls(scene).values(), key=lambda ranks: (-len(ranks), ranks))
    told = all(operation.group == DEFAULT_GROUP and operation.call.peer is None for operation in scene.waiting.values())
    few = tuple(sorted(rank for ranks in calls[1:] for rank in ranks))
    odd = few if told and len(calls[0]) > len(few) and not scene.missing else ()
    said = "; ".join(_stand(scene, ranks) for ranks in calls[:4])
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.UNKNOWN,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=odd,
            summary=f"Ranks stand in different calls and wait for each other: {said}.",
            advice=_DIFFERENT,
            evidence=(*_motions(scene.evidence, odd), *_motions(scene.evidence, calls[0])),
            divergence=_divergence(scene, odd),
        )
    ]


_DIFFERENT = (
    "Look why these ranks are not at the same call: one call too few and one too many look alike from outside, `desync watch` "
    "tells them apart."
)


def _between_two(scene: _Scene) -> list[Finding]:
    """All stand in calls, some in a send or a recv: a circle, of which one cannot see who began it."""
    if len(scene.proved) < len(scene.waiting) or scene.missing:
        return []
    said = "; ".join(
        f"{_stand(scene, (rank,))}{f' for rank {operation.call.peer}' if operation.call.peer is not None else ''}"
        for rank, operation in list(scene.waiting.items())[:8]
    )
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.P2P_MISMATCH,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=(),
            summary=f"All ranks wait for each other: {said}.",
            advice=f"{advice(Cause.P2P_MISMATCH)} {_LOOK_LONGER}",
            evidence=_motions(scene.evidence, scene.waiting),
            divergence=_divergence(scene, ()),
        )
    ]


def _together(scene: _Scene) -> list[Finding]:
    """All ranks that were seen are in one call: nobody is odd."""
    used = (scene.evidence.activities.get(rank) for rank in scene.waiting)
    flows = any(one is not None and (one.io_bytes or 0) > FLOWS_BYTES for one in used)
    if len(scene.proved) < len(scene.waiting) or flows:
        return []
    if scene.missing:
        return [_without_them(scene)] if all(operation.group == DEFAULT_GROUP for operation in scene.waiting.values()) else []
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.COMMUNICATION_STALLED,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=(),
            summary=f"Nobody is odd: {_waits(scene)}, and it has not finished in the {seconds(scene.window())} of looking.",
            advice=f"{advice(Cause.COMMUNICATION_STALLED)} {_LOOK_LONGER}",
            evidence=_motions(scene.evidence, scene.waiting),
            divergence=_divergence(scene, ()),
        )
    ]


FLOWS_BYTES = 65536
"""Ranks that all are in a call and read or write more than this are busy with its data."""


def _without_them(scene: _Scene) -> Finding:
    """Those that are here wait for others, which have ended or are on other machines."""
    gone = scene.gone
    if gone:
        summary = f"{_capital(named(gone))} {verb(gone, 'has', 'have')} no process any more; {_waits(scene)}."
        said = "Find out how these ranks ended: their own output, dmesg, the launcher's messages."
    else:
        summary = f"{_capital(_waits(scene))}; nobody on this machine is odd, and {named(scene.missing)} could not be seen."
        said = _OTHER_MACHINES
    return Finding(
        status=Status.CRASH if gone else Status.UNKNOWN,
        cause=Cause.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=gone,
        summary=summary,
        advice=said,
        evidence=_motions(scene.evidence, scene.waiting),
        divergence=_divergence(scene, gone),
    )


# --- words


def _stand(scene: _Scene, ranks: tuple[int, ...]) -> str:
    call = scene.waiting[ranks[0]].call
    return f"{named(ranks)} {verb(ranks, 'stands', 'stand')} in {call.op} at {place(call.site)}"


def _waits(scene: _Scene) -> str:
    parts = []
    for ranks in _calls(scene).values():
        call = scene.waiting[ranks[0]].call
        parts.append(f"{named(ranks)} {verb(ranks, 'waits', 'wait')} in {call.op} at {place(call.site)}")
    return " and ".join(parts[:3])


def _moves(scene: _Scene, rank: int) -> str:
    activity = scene.evidence.activities.get(rank)
    words = {Motion.MOVING: "moves", Motion.FROZEN: "stands still"}
    return words.get(activity.motion if activity is not None else Motion.UNKNOWN, "was not seen to move or to stand")


def _where(evidence: Evidence, rank: int) -> str:
    """Where a rank's main thread is in the user's code, and what it waits for."""
    activity = evidence.activities.get(rank)
    reason = f" ({activity.waits_for})" if activity is not None and activity.waits_for else ""
    for stacks in evidence.stacks:
        if stacks.rank == rank and stacks.threads:
            frames = stacks.threads[0].frames
            own = tuple(frame for frame in frames if frame.is_users) or frames[:1]
            return f"at {place(CallSite(own))}{reason}"
    return f"at a line that could not be seen{reason}"


def _motions(evidence: Evidence, ranks: Iterable[int]) -> tuple[str, ...]:
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


def _divergence(scene: _Scene, odd: tuple[int, ...]) -> Divergence | None:
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


def _at(scene: _Scene, rank: int, first: Operation) -> AtDivergence:
    operation = scene.waiting.get(rank)
    if operation is None:
        return AtDivergence(OperationState.ABSENT)
    same = operation.call.op in (first.call.op, *ANY)
    return AtDivergence(OperationState.WAITING if same else OperationState.MISMATCHED, operation)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
