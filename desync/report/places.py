"""Where the ranks are in the user's code: the line that the verdict points to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from desync.model import (
    CallSite,
    Cause,
    Divergence,
    Evidence,
    Finding,
    Frame,
    MarkKind,
    Operation,
    OperationState,
    RankState,
    Trace,
)
from desync.report.frames import bounded_frame, is_main, main_stack, newest, user_frames
from desync.report.model import Place, Role
from desync.report.text import NAME, bounded

MAX_CALLERS = 8
MAX_PLACES = 64


def places_of(finding: Finding, evidence: Evidence, states: dict[int, RankState]) -> tuple[Place, ...]:
    """The places of a finding's culprits, then of those that wait for them; equal places are one with their ranks."""
    culprits = [_culprit(rank, finding, evidence, states) for rank in finding.culprit_ranks]
    waiting = [_inside(rank, finding.divergence) or _elsewhere(rank, evidence) for rank in _others(finding)]
    return (*_merged(culprits), *_merged(waiting))[:MAX_PLACES]


def _others(finding: Finding) -> list[int]:
    if finding.divergence is None:
        return []
    return [rank for rank in sorted(finding.divergence.by_rank) if rank not in finding.culprit_ranks]


def _merged(places: Iterable[Place | None]) -> tuple[Place, ...]:
    """Equal places as one; the place of most ranks first."""
    ranks: dict[Place, list[int]] = {}
    for place in places:
        if place is not None:
            ranks.setdefault(replace(place, ranks=()), []).extend(place.ranks)
    ordered = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple(replace(place, ranks=tuple(sorted(members))) for place, members in ordered)


def _place(rank: int, role: Role, frames: Sequence[Frame], op: str | None = None) -> Place | None:
    if not frames:
        return None
    shown = tuple(map(bounded_frame, frames[: MAX_CALLERS + 1]))
    return Place((rank,), role, shown[0], bounded(op, NAME) if op else None, shown[1:])


def _frames(site: CallSite | None) -> tuple[Frame, ...]:
    return site.frames if site else ()


def _culprit(rank: int, finding: Finding, evidence: Evidence, states: dict[int, RankState]) -> Place | None:
    """The most telling place: where it raised, what it does instead, where it ended itself or stands, what it did last."""
    trace = evidence.trace(rank)
    return (
        _raised(trace, states.get(rank))
        or (_ran_out(trace) if finding.cause is Cause.OUT_OF_MEMORY else None)
        or (_any_thread(rank, evidence) if finding.cause is Cause.TEARDOWN else None)
        or _inside(rank, finding.divergence)
        or _exited(trace, states.get(rank))
        or _standing(rank, evidence)
        # Where it made no group it has nothing to change at what it did last.
        or (_last(trace) if trace and finding.cause is not Cause.GROUP_CREATION else None)
    )


def _raised(trace: Trace | None, state: RankState | None) -> Place | None:
    mark = trace.failure if trace else None
    if trace is None or mark is None or mark.failure is None or state is not RankState.RAISED:
        return None
    frames = user_frames(mark.failure.frames) or mark.failure.frames[:1] or _frames(mark.site)
    return _place(trace.rank, Role.RAISED, frames)


def _ran_out(trace: Trace | None) -> Place | None:
    """Where memory ran out under a rank that caught it."""
    mark = trace.passed_failures[-1] if trace and trace.passed_failures else None
    return _place(trace.rank, Role.RAISED, _frames(mark.site)) if trace and mark else None


def _any_thread(rank: int, evidence: Evidence) -> Place | None:
    """Where a thread runs the user's code, the main one if it does: of a rank whose program is over it may be any."""
    for sample in newest(stacks for stacks in evidence.stacks if stacks.rank == rank):
        threads = sorted(sample.threads, key=lambda stack: not is_main(stack.thread))
        found = next((frames for stack in threads if (frames := user_frames(stack.frames))), ())
        if place := _place(rank, Role.AT, found):
            return place
    return None


def _exited(trace: Trace | None, state: RankState | None) -> Place | None:
    marks = [mark for mark in trace.marks if mark.kind is MarkKind.EXIT] if trace and state is RankState.EXITED else []
    return _place(trace.rank, Role.EXITED, _frames(marks[-1].site)) if trace and marks else None


def _inside(rank: int, divergence: Divergence | None) -> Place | None:
    standing = divergence.by_rank.get(rank) if divergence else None
    if standing is None or standing.operation is None:
        return None
    operation = standing.operation
    match standing.state:
        case OperationState.WAITING:
            role = Role.WAITS
        case OperationState.MISMATCHED:
            role = Role.INSTEAD
        case OperationState.ABSENT if operation.holds:
            role = Role.INSTEAD
        case _:
            return None
    return _place(rank, role, _frames(operation.call.site), operation.call.op)


def _elsewhere(rank: int, evidence: Evidence) -> Place | None:
    """The operation that a rank is in, of which the divergence knows nothing: one of another group."""
    operation = pending(evidence.trace(rank))
    return _place(rank, Role.INSTEAD, _frames(operation.call.site), operation.call.op) if operation else None


def pending(trace: Trace | None) -> Operation | None:
    """The operation that a rank entered last, if it is still in it."""
    if trace is None or not len(trace.operations):
        return None
    newest = trace.operations.row(trace.rank, -1)
    return newest if newest.pending else None


def _standing(rank: int, evidence: Evidence) -> Place | None:
    for sample in newest(stacks for stacks in evidence.stacks if stacks.rank == rank):
        stack = main_stack(sample)
        if stack and (frames := user_frames(stack.frames)):
            return _place(rank, Role.AT, frames)
    return None


def _last(trace: Trace) -> Place | None:
    if not len(trace.operations):
        return None
    call = trace.operations.row(trace.rank, -1).call
    return _place(trace.rank, Role.LAST, _frames(call.site), call.op)
