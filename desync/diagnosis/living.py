"""The diagnosis of a job that runs now and of which nothing was recorded: stacks of all ranks, and whether they moved.

Two looks a few seconds apart show who stands and who goes on; they do not show for how long, nor which operation of its group a
call is.  So nothing here is more than likely, and where two readings are open nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from desync.diagnosis.advice import advice
from desync.diagnosis.scene import (
    DEFAULT_GROUP,
    Scene,
    calls_of,
    divergence,
    look_over,
    motions,
    peers_of,
    places_of,
    stands_in,
    where_it_is,
    who_waits,
)
from desync.diagnosis.verdict import diagnose
from desync.diagnosis.words import named, seconds, verb
from desync.model import Cause, Certainty, Diagnosis, Evidence, Finding, Kind, RankState, Status

AWAITED_NS = 1_000_000_000
"""A rank that others have waited for so long is spoken of; for less, everybody is waited for all the time."""

_LOOK_LONGER = "Look again, for longer (--for 15): a rank that then still stands there will not come by itself."
_OTHER_MACHINES = "Run `desync inspect` on the other machines of the job as well: whoever is awaited may be there."


def interpret_living(evidence: Evidence) -> Diagnosis:
    """The findings for a job that runs; with records of its operations they are the watcher's."""
    if is_recorded(evidence):
        return _recorded(evidence)
    scene = look_over(evidence)
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
    """What was seen, in a sentence or two, where there is no finding."""
    scene = look_over(evidence)
    looked = f"in {seconds(scene.window())} of looking"
    if scene.all_move:
        number = len(scene.ranks)
        who = "The only rank moves" if number == 1 else "Both ranks move" if number == 2 else f"All {number} ranks move"
        return f"{who}: no rank stood still {looked}."
    if not evidence.stacks:
        return f"No stack could be read (see the notes), so the ranks' calls are not known: {_counts(scene)} {looked}."
    doubt = _doubt(scene, *_odd_ones(scene)) if scene.waiting and scene.outside and not scene.passing else None
    if doubt is not None:
        return f"{_capital(who_waits(scene))}; who is awaited cannot be told: {doubt} ({_counts(scene)} {looked})."
    if scene.waiting and scene.missing and not scene.outside:
        others = f"nobody on this machine is odd, and {named(scene.missing)} could not be seen"
        return f"{_capital(who_waits(scene))}; {others} (no rank that was seen moved {looked})."
    return f"No rank is odd, as far as two looks can tell: {_counts(scene)} {looked}."


def _counts(scene: Scene) -> str:
    sets = (
        ((*scene.working, *scene.passing), "moved", "moved"),
        (tuple(scene.waiting), "was in a call of torch.distributed", "were in calls of torch.distributed"),
        (scene.still, "stood still", "stood still"),
        (scene.unknown, "may have moved or not", "may have moved or not"),
        (scene.missing, "was not seen", "were not seen"),
    )
    return ", ".join(f"{named(ranks)} {verb(ranks, one, many)}" for ranks, one, many in sets if ranks)


def _state(scene: Scene, rank: int) -> RankState:
    if rank in scene.gone:
        return RankState.EXITED
    return RankState.WAITING if rank in scene.waiting else RankState.RUNNING


def _doings(scene: Scene, found: Iterable[Finding]) -> tuple[str, ...]:
    """What each rank does of which no finding speaks, equal ones together."""
    told = {rank for finding in found for rank in finding.culprit_ranks}
    texts: dict[str, list[int]] = {}
    for claim in scene.evidence.claims:
        for rank in sorted({*claim.ranks}.difference(told)):
            texts.setdefault(claim.text, []).append(rank)
    for rank in sorted({*scene.still}.difference(told)):
        texts.setdefault(f"stands still {where_it_is(scene.evidence, rank)}", []).append(rank)
    return tuple(f"{named(ranks)}: {text}" for text, ranks in texts.items())


# --- with records


def _recorded(evidence: Evidence) -> Diagnosis:
    """As the watcher would say it; who has been awaited for as long as it was looked is named as well, with less certainty."""
    base = diagnose(evidence)
    if base.findings or evidence.hang_after_ns <= AWAITED_NS:
        return base
    sooner = diagnose(replace(evidence, hang_after_ns=AWAITED_NS))
    found = tuple(
        replace(finding, certainty=Certainty.POSSIBLE, advice=f"{finding.advice} {_LOOK_LONGER}") for finding in sooner.findings
    )
    return replace(sooner, findings=found) if found else base


# --- without records


def _findings(scene: Scene) -> list[Finding]:
    if not scene.waiting or scene.passing:
        return []  # nobody waits, or whoever waits does so while others get on with each other
    if scene.outside:
        return _somebody_is_outside(scene)
    if scene.gone:
        ending = any(operation.call.op == "destroy_process_group" for operation in scene.waiting.values())
        return [] if ending or len(scene.proved) < len(scene.waiting) else [_without_the_gone(scene)]
    if any(operation.call.kind is Kind.P2P for operation in scene.waiting.values()):
        return _between_two(scene)
    return _different_calls(scene) if len(places_of(scene)) > 1 else _together(scene)


def _somebody_is_outside(scene: Scene) -> list[Finding]:
    """Ranks stand in calls and others do not: it is these that are awaited, if they belong to what is waited for."""
    still, late = _odd_ones(scene)
    if _doubt(scene, still, late) is not None or not (still or late):
        return []
    return [_odd(scene, still or late, moves=not still)]


def _odd_ones(scene: Scene) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those that are awaited, as far as it seems: who stands, and who is on its way."""
    still = scene.still if scene.proved else tuple(rank for rank in scene.still if scene.ran(rank) is False)
    # Where the job begins, some come sooner than others.
    begun = any(scene.waiting[rank].call.kind is not Kind.GROUP for rank in scene.proved)
    late = scene.working if begun else ()
    peers = peers_of(scene)
    if peers is None:
        return still, late
    return tuple(rank for rank in still if rank in peers), tuple(rank for rank in late if rank in peers)


def _doubt(scene: Scene, still: tuple[int, ...], late: tuple[int, ...]) -> str | None:
    """Why nobody can be blamed although ranks wait; None if nothing speaks against it."""
    others = sorted({*scene.outside}.difference(still or late))
    if any(operation.group != DEFAULT_GROUP for operation in scene.waiting.values()) and not scene.only_still_outside:
        return "they wait in a group whose members cannot be seen from outside"
    if len(still or late) > len(scene.waiting):
        return "more ranks are outside than wait, and they may be the ones that are right"
    if scene.gone:
        return f"{named(scene.gone)} {verb(scene.gone, 'has', 'have')} no process any more"
    if still and (late or scene.unknown):
        return f"{named(others)} {verb(others, 'is', 'are')} outside as well"
    return None


def _odd(scene: Scene, odd: tuple[int, ...], *, moves: bool) -> Finding:
    evidence = scene.evidence
    where = list(dict.fromkeys(where_it_is(evidence, rank) for rank in odd))
    at = where[0] if len(where) == 1 else f"{named(odd[:1])} {where[0]}"
    cause = Cause.SLOW_RANK if moves else _cause_of_stillness(scene)
    is_, stands = verb(odd, "is", "are"), verb(odd, "stands", "stand")
    did = f"{is_} in no collective and at work, {at}" if moves else f"{stands} still outside of any collective, {at}"
    advices = [advice(cause), *([] if scene.certainty() is Certainty.LIKELY or moves else [_LOOK_LONGER])]
    return Finding(
        status=Status.SLOW if moves else Status.HANG,
        cause=cause,
        certainty=scene.certainty(),
        culprit_ranks=odd,
        summary=f"{_capital(named(odd))} {did}; {who_waits(scene)}.",
        advice=" ".join([*advices, *([_OTHER_MACHINES] if scene.missing else [])]),
        evidence=(*motions(evidence, odd), *motions(evidence, scene.waiting)),
        divergence=divergence(scene, odd),
    )


def _cause_of_stillness(scene: Scene) -> Cause:
    starting = all(operation.call.op == "init_process_group" for operation in scene.waiting.values())
    return Cause.RENDEZVOUS if starting else Cause.STALLED_RANK


def _different_calls(scene: Scene) -> list[Finding]:
    """All ranks stand in calls, from different lines: the few are odd if theirs is another call of the same group.

    The same call from two lines may well be one operation: a broadcast is often written once for its root, once for the others.
    """
    if len(scene.proved) < len(scene.waiting) or any(_is_busy(scene, rank) for rank in scene.waiting):
        return []
    calls = calls_of(scene)
    told = all(operation.group == DEFAULT_GROUP for operation in scene.waiting.values())
    few = tuple(sorted(rank for ranks in calls[1:] for rank in ranks))
    odd = few if told and few and len(calls[0]) > len(few) and not scene.missing else ()
    said = "; ".join(stands_in(scene, ranks) for ranks in places_of(scene)[:4])
    which = f"; {named(odd)} {verb(odd, 'is the odd one', 'are the odd ones')}" if odd else ""
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.UNKNOWN,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=odd,
            summary=f"All ranks wait, in different places: {said}{which}.",
            advice=_DIFFERENT,
            evidence=motions(scene.evidence, scene.waiting),
            divergence=divergence(scene, odd),
        )
    ]


_DIFFERENT = (
    "Look why these ranks are not at the same call: one call too few and one too many look alike from outside, `desync watch` "
    "tells them apart."
)


def _between_two(scene: Scene) -> list[Finding]:
    """All stand in calls, some in a send or a recv: a circle, of which one cannot see who began it."""
    if len(scene.proved) < len(scene.waiting) or scene.missing:
        return []
    said = "; ".join(
        f"{stands_in(scene, (rank,))}{f' for rank {operation.call.peer}' if operation.call.peer is not None else ''}"
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
            evidence=motions(scene.evidence, scene.waiting),
            divergence=divergence(scene, ()),
        )
    ]


def _together(scene: Scene) -> list[Finding]:
    """All ranks are in one call, and nothing is being done for it: nobody is odd."""
    if len(scene.proved) < len(scene.waiting) or scene.missing or any(_is_busy(scene, rank) for rank in scene.waiting):
        return []
    # In groups that cannot be told apart they may wait for each other's next turn.
    told = all(operation.group == DEFAULT_GROUP for operation in scene.waiting.values())
    cause = Cause.COMMUNICATION_STALLED if told else Cause.UNKNOWN
    return [
        Finding(
            status=Status.HANG,
            cause=cause,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=(),
            summary=f"Nobody is odd: {who_waits(scene)}, and it has not finished in the {seconds(scene.window())} of looking.",
            advice=f"{advice(cause)} {_LOOK_LONGER}",
            evidence=motions(scene.evidence, scene.waiting),
            divergence=divergence(scene, ()),
        )
    ]


BUSY_BYTES, BUSY_SHARE = 65536, 0.02
"""Ranks that are in a call and read, write or compute more than this are busy with its data."""


def _is_busy(scene: Scene, rank: int) -> bool:
    used = scene.evidence.activities.get(rank)
    return used is not None and ((used.io_bytes or 0) > BUSY_BYTES or (used.cpu_s or 0) * 1e9 > BUSY_SHARE * scene.window())


def _without_the_gone(scene: Scene) -> Finding:
    """Those that are left wait, and others have ended."""
    gone = scene.gone
    return Finding(
        status=Status.CRASH,
        cause=Cause.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=gone,
        summary=f"{_capital(named(gone))} {verb(gone, 'has', 'have')} no process any more; {who_waits(scene)}.",
        advice="Find out how these ranks ended: their own output, dmesg, the launcher's messages.",
        evidence=motions(scene.evidence, scene.waiting),
        divergence=divergence(scene, gone),
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
