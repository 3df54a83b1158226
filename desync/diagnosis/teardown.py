"""The end of the job: the work is done, and a rank hangs in its exit, or aborts there.

Nobody waits for such a rank, but the job ends only with it.  A rank that still works (it uploads what was trained) is left in
peace, and so is everybody while one rank of the job is not known to be done.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from desync.diagnosis.advice import END_WHAT_WAS_STARTED, advice
from desync.diagnosis.board import Board
from desync.diagnosis.doing import main_stack, moved, where
from desync.diagnosis.endings import Ending, Manner
from desync.diagnosis.ends import NATIVE, signal_name
from desync.diagnosis.frontier import Parting, together
from desync.diagnosis.standing import stood_for
from desync.diagnosis.suspect import Explanation
from desync.diagnosis.words import named, place, verb
from desync.model import Cause, Certainty, Evidence, Finding, Motion, Operation, RankStacks, Stack, Status, Trace

_SETTLING_NS = 2_000_000_000
"""An exit may take so long before its process is looked at."""
_PATIENCE = 3
"""A rank in the user's own code may have its reasons: it is granted more than one whose program is over."""


class Stage(enum.Enum):
    """How far a rank has come with its end."""

    EXITING = "does not end, although it has said that it does"
    OVER = "cannot end: Python waits for its threads"
    DESTROYING = "is still in destroy_process_group"
    ALONE = "stands still"


@dataclass(frozen=True, slots=True)
class _Last:
    """The last that a rank did, and since when it has been there."""

    stage: Stage
    since: int
    operation: Operation | None = None


def lingering(board: Board, ends: Mapping[int, Ending], partings: tuple[Parting, ...]) -> tuple[int, ...]:
    """Ranks that have done their work and may not have ended, if the whole job's work is done."""
    evidence = board.evidence
    if evidence.ended or evidence.observed_at is None or any(parting.waits for parting in partings):
        return ()
    if any(together(group) is not None for group in board.groups):
        return ()
    lasts = _lasts(board, ends)
    return tuple(rank for rank, last in lasts.items() if evidence.observed_at - last.since >= _SETTLING_NS)


def _lasts(board: Board, ends: Mapping[int, Ending]) -> dict[int, _Last]:
    """The stage of every rank that may still be there; nothing while a rank is not known to be done."""
    traces, world = board.traces, board.evidence.job.world_size
    if world is None or len(traces) < world:
        return {}
    found: dict[int, _Last] = {}
    working: list[int] = []
    left = any(_left_well(ending) for ending in ends.values())
    for rank, trace in traces.items():
        ending = ends.get(rank)
        last = _stage(trace, ending, left)
        if last is not None:
            found[rank] = last
        elif ending is None:
            working.append(rank)
        elif not _left_well(ending):
            return {}
    if not working:
        return found
    # One that is alone may do what it likes; of others it is not known whether they wait for it.
    gone = [ends[rank].time for rank in traces if rank in ends]
    if len(working) > 1 or len(gone) < len(traces) - 1 or None in gone or _went_further(board, working[0]):
        return {}
    return {working[0]: _Last(Stage.ALONE, max((time for time in gone if time is not None), default=0))}


def _went_further(board: Board, rank: int) -> bool:
    """Whether a rank has made a collective that one that has ended did not come to: as its root it need not wait there."""
    lanes = [group.lanes for group in board.groups if group.kind == "collective" and rank in group.lanes]
    return any(each[rank].last > min(lane.last for lane in each.values()) for each in lanes)


def _left_well(ending: Ending) -> bool:
    return ending.manner is Manner.EXITED and ending.code in (0, None)


def _stage(trace: Trace, ending: Ending | None, left: bool) -> _Last | None:
    """How far a rank's end has come; None if it has not begun, or if its process is known to be gone.

    ``left``: some rank has ended already.  Without that, a main thread that is over may have left threads to work for it.
    """
    if ending is not None:
        said = trace.exit is not None and trace.exit.announced and _left_well(ending)
        return _Last(Stage.EXITING, ending.time or 0) if said else None
    newest = trace.operations.row(trace.rank, -1) if len(trace.operations) else None
    entered = newest.entered if newest is not None and newest.entered is not None else 0
    destroys = newest is not None and newest.call.op == "destroy_process_group"
    if newest is not None and destroys and newest.pending:
        return _Last(Stage.DESTROYING, entered, newest)
    if trace.finished is not None and entered <= trace.finished and (left or destroys):
        return _Last(Stage.OVER, trace.finished)
    return None


def hanging(board: Board, ends: Mapping[int, Ending], ranks: tuple[int, ...]) -> list[Finding]:
    """The finding that ranks among those that linger are stuck; nothing while they move."""
    evidence, lasts = board.evidence, _lasts(board, ends) if ranks else {}
    # A rank that has said that it ends has an activity only where its process was found alive.
    alive = [rank for rank in ranks if rank in evidence.activities or lasts[rank].stage is not Stage.EXITING]
    stuck = {rank: lasts[rank] for rank in alive if _is_stuck(evidence, rank, lasts[rank])}
    if not stuck:
        return []
    first = next(iter(stuck.values()))
    left = tuple(rank for rank in board.traces if rank not in alive)
    own_doing = left or all(last.stage is Stage.OVER for last in stuck.values())
    who, others = named(stuck), f"; {named(left)} {verb(left, 'has', 'have')} ended" if left else ""
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.TEARDOWN,
            certainty=Certainty.LIKELY if own_doing and first.stage is not Stage.ALONE else Certainty.POSSIBLE,
            culprit_ranks=tuple(sorted(stuck)) if own_doing else (),
            summary=f"The work is done, but {who} {_what(evidence, next(iter(stuck)), first)}{others}.",
            advice=END_WHAT_WAS_STARTED if all(map(_destroyed, board.traces.values())) else advice(Cause.TEARDOWN),
            evidence=tuple(moved(evidence.activities[rank], evidence.observed_at) for rank in stuck),
            time=max(last.since for last in stuck.values()),
        )
    ]


def _destroyed(trace: Trace) -> bool:
    return any(call.op == "destroy_process_group" for call in trace.operations.calls)


def _is_stuck(evidence: Evidence, rank: int, last: _Last) -> bool:
    activity, now = evidence.activities.get(rank), evidence.observed_at
    if activity is None or activity.motion is not Motion.FROZEN or now is None:
        return False
    limit = evidence.hang_after_ns * (_PATIENCE if last.stage is Stage.ALONE else 1)
    return min(stood_for(evidence, rank), now - last.since) >= limit


def _what(evidence: Evidence, rank: int, last: _Last) -> str:
    words = last.stage.value
    if last.operation is not None:
        return f"{words} at {place(last.operation.call.site)}"
    main = main_stack(evidence, rank)
    if last.stage is Stage.ALONE:
        return f"{words} ({where(main)})" if main is not None else words
    held = [stack for stacks in evidence.stacks if stacks.rank == rank for stack in _users(stacks)]
    threads = dict.fromkeys(f"{stack.thread or 'a thread'} is {where(stack)}" for stack in held if stack is not main)
    return f"{words} ({'; '.join(threads)})" if threads else words


def _users(stacks: RankStacks) -> list[Stack]:
    return [stack for stack in stacks.threads if any(frame.is_users for frame in stack.frames)]


def aborted(ending: Ending) -> Explanation | None:
    """It had done its work, and crashed while its process ended."""
    if ending.signal not in NATIVE or not (ending.manner is Manner.EXITED or ending.was_done):
        return None
    return Explanation(
        Cause.TEARDOWN,
        Certainty.LIKELY,
        f"had done its work and was ended by {signal_name(ending.signal or 0)} in its exit",
        evidence=(f"{named([ending.rank])}: nobody waited for it any more when it crashed",),
        advice=(
            "Training is not affected. Call destroy_process_group() on all ranks, and let go of the model before it "
            "(del model; gc.collect()): threads of the backend that still free memory crash an interpreter that is ending."
        ),
        time=ending.time,
    )
