"""Ranks that are inside an operation like all others, but whose process does not run."""

from __future__ import annotations

from collections.abc import Iterable

from desync.diagnosis.advice import STOPPED_ADVICE
from desync.diagnosis.doing import is_stopped, moved
from desync.diagnosis.frontier import Parting, divergence
from desync.diagnosis.words import called, named, place, verb
from desync.model import Activity, Cause, Certainty, Evidence, Finding, Operation, Status


def stopped_inside(evidence: Evidence, here: Parting, operation: Operation) -> Finding | None:
    """The finding that somebody stopped ranks in the middle of an operation in which all are; None if nobody was."""
    culprits = tuple(rank for rank in here.came if _long_stopped(evidence, rank))
    if not culprits:
        return None
    others = tuple(rank for rank in here.came if rank not in culprits)
    wait = f"; {named(others)} {verb(others, 'waits', 'wait')} there" if others else ""
    who = named(culprits)
    return Finding(
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        certainty=Certainty.LIKELY,
        culprit_ranks=culprits,
        summary=(
            f"{who[0].upper()}{who[1:]} {verb(culprits, 'is', 'are')} stopped in the middle of {called(operation)} at "
            f"{place(operation.call.site)}: somebody sent SIGSTOP, or a debugger holds {verb(culprits, 'it', 'them')}{wait}."
        ),
        advice=STOPPED_ADVICE,
        evidence=tuple(moved(evidence.activities[rank], evidence.observed_at) for rank in culprits),
        time=here.time,
        divergence=divergence(here, culprits=culprits),
    )


def _long_stopped(evidence: Evidence, rank: int) -> bool:
    return is_stopped(evidence.activities.get(rank)) and stood_for(evidence, rank) >= evidence.hang_after_ns


def stood_for(evidence: Evidence, rank: int) -> int:
    """For how long (ns) a rank has been in the state in which it was found; 0 if that is not known."""
    activity, now = evidence.activities.get(rank), evidence.observed_at
    return now - activity.since if activity is not None and activity.since is not None and now is not None else 0


def in_disk_sleep(evidence: Evidence, ranks: Iterable[int]) -> tuple[str, ...]:
    """Evidence of ranks that a disk or a driver has not let go of at any look: it names them and blames nobody."""
    asleep: list[Activity] = [
        activity
        for rank in ranks
        if (activity := evidence.activities.get(rank)) is not None and activity.process_state == "disk-sleep"
    ]
    words = "a driver or a file system does not answer it"
    return tuple(f"{moved(activity, evidence.observed_at)}: {words}" for activity in asleep)
