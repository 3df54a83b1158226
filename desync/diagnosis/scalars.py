"""A barrier or a single number that met a bucket: two calls, and no argument that differs.

NCCL's barrier is an all_reduce of one element, and so is a loss or a flag that ranks agree on; gradients come in buckets of
many thousands.  Where both meet under one number, a rank is a call ahead of the others, or behind.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from desync.diagnosis.advice import advice
from desync.diagnosis.words import called, capital, named, place, raised, verb
from desync.model import Cause, Certainty, Evidence, Finding, Mark, Operation, OperationState

MANY = 1000
"""No number that ranks agree on, and no list of such, has so many elements."""


def told_apart(finding: Finding, evidence: Evidence) -> Finding:
    """A finding of differing arguments as one of differing calls, where one element met many and no line shows more."""
    sizes = _sizes(finding)
    alone = {rank: operation for rank, (size, operation) in sizes.items() if size == 1}
    many = {rank: operation for rank, (size, operation) in sizes.items() if size >= MANY}
    if finding.cause is not Cause.ARGUMENT_MISMATCH or not alone or not many or len(alone) + len(many) < len(sizes):
        return finding
    left_out = set(finding.culprit_ranks) == set(alone)
    cause = Cause.SKIPPED_COLLECTIVE if left_out else Cause.RANK_ONLY_COLLECTIVE
    one, other = next(iter(alone.values())), next(iter(many.values()))
    return replace(
        finding,
        cause=cause,
        certainty=Certainty.POSSIBLE,
        summary=(
            f"{capital(named(alone))} {verb(alone, 'is', 'are')} in an all_reduce of one element (#{one.seq}), as a barrier or "
            f"a single number makes it, and {named(many)} in {called(other)}: these are two calls, which met under one number."
        ),
        advice=advice(cause),
        evidence=(*finding.evidence, *_errors_before(finding, evidence)),
    )


def _sizes(finding: Finding) -> dict[int, tuple[int, Operation]]:
    """For each rank that came to the point where they part how many elements it gave to an all_reduce there."""
    standing = finding.divergence.by_rank if finding.divergence is not None else {}
    return {
        rank: (prod(each.operation.call.inputs.shapes[0]), each.operation)
        for rank, each in standing.items()
        if each.operation is not None
        and each.state is not OperationState.ABSENT
        and each.operation.call.op == "all_reduce"
        and len(each.operation.call.inputs.shapes) == 1
    }


def _errors_before(finding: Finding, evidence: Evidence) -> tuple[str, ...]:
    """What the culprits raised and went on after: a batch whose error was caught is one whose calls were left out."""
    said = []
    for rank in finding.culprit_ranks:
        trace, standing = evidence.trace(rank), finding.divergence.by_rank.get(rank) if finding.divergence else None
        until = standing.operation.completed if standing is not None and standing.operation is not None else None
        for mark in trace.marks if trace is not None else ():
            if mark.failure is not None and _is_own(mark) and mark.time < (until or mark.time):
                said.append(f"{named([rank])} raised {raised(mark.failure)} at {place(mark.site)} and went on")
    return tuple(said[:4])


def _is_own(mark: Mark) -> bool:
    return mark.failure is not None and mark.site is not None and "timeout" not in mark.failure.message
