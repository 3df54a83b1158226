"""A rank that ran out of memory, caught that, and left out what the others did meanwhile."""

from __future__ import annotations

from desync.diagnosis.progress import number_of
from desync.diagnosis.suspect import Explanation, Suspect
from desync.diagnosis.words import counted, named, place, raised
from desync.model import Cause, Certainty, Mark, Operation, Trace


def caught_out_of_memory(suspect: Suspect) -> Explanation | None:
    """Memory ran out under more of its forwards and backwards than under the witness's, and it is that much behind."""
    own, theirs = _ran_out(suspect.trace, suspect.own), _ran_out(suspect.witness, suspect.theirs)
    more = len(own) - len(theirs)
    if more <= 0:
        return None
    last = own[-1]
    missing = suspect.witness_at.backwards - suspect.at.backwards
    if not _right_before(suspect, last) and (missing <= 0 or suspect.can_come):
        return None  # it went on since, and where it may still come it is merely late
    failure = last.failure
    assert failure is not None  # noqa: S101 - of such marks alone the list was made
    left_out = f" and left out {counted(missing, 'backward')}" if missing > 0 else ""
    fits = missing == more and not suspect.can_come
    return Explanation(
        Cause.OUT_OF_MEMORY,
        Certainty.PROVEN if fits else Certainty.LIKELY,
        f"ran out of memory at {place(last.site)}, caught that{left_out} ({raised(failure)})",
        evidence=(
            f"memory ran out {counted(len(own), 'time')} on {named([suspect.rank])}, {counted(len(theirs), 'time')} on "
            f"{named([suspect.witness.rank])}",
            f"backwards: {suspect.at.backwards} on {named([suspect.rank])}, {suspect.witness_at.backwards} on "
            f"{named([suspect.witness.rank])}",
        ),
        time=last.time,
    )


def _ran_out(trace: Trace, before: Operation | None) -> list[Mark]:
    """The times that memory ran out under a rank and it went on, before an operation if one is given."""
    limit = number_of(trace, before) if before is not None else None
    return [
        mark
        for mark in trace.passed_failures
        if mark.failure is not None and mark.failure.out_of_memory and (limit is None or mark.after < limit)
    ]


def _right_before(suspect: Suspect, mark: Mark) -> bool:
    """Whether the rank entered nothing between the failure and where it parted from the others."""
    if suspect.own is not None:
        return mark.after == number_of(suspect.trace, suspect.own) - 1
    return mark.after == suspect.trace.dropped + len(suspect.trace.operations)
