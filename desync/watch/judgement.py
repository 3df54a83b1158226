"""What the watcher makes of diagnoses: which is worth interrupting its user, and whether a fault has passed.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from desync.model import Cause, Diagnosis, Divergence, Evidence, Finding, Operation, OperationState, Status, Trace

_WORTH = frozenset({Status.HANG, Status.CRASH, Status.MISMATCH, Status.DRIFT})
_STANDS = frozenset({Status.HANG, Status.CRASH})
"""What a job does not go on after."""


def worth_reporting(diagnosis: Diagnosis) -> Finding | None:
    """The finding to report while the job runs: the first, unless it only says that somebody is late."""
    first = diagnosis.findings[0] if diagnosis.findings else None
    return first if first is not None and first.status in _WORTH else None


def standstill(diagnosis: Diagnosis) -> Finding | None:
    """The first finding after which the job cannot go on."""
    return next((finding for finding in diagnosis.findings if finding.status in _STANDS), None)


def with_stacks(seen: Diagnosis, again: Diagnosis | None) -> Diagnosis:
    """What to report of a fault when stacks have been taken: what they show, unless it is not there any more (or failed).

    If it went on meanwhile, the next look decides what to say of that.
    """
    if again is None or worth_reporting(again) is None:
        return seen
    return seen if standstill(seen) is not None and standstill(again) is None else again


def has_recovered(reported: Diagnosis, evidence: Evidence, *, still_found: bool) -> bool:
    """Whether a hang that was reported has resolved: every rank that waited then has completed that operation since."""
    finding = standstill(reported)
    if finding is None or finding.status is not Status.HANG:
        return False
    traces = {trace.rank: trace for trace in evidence.traces}
    if finding.divergence is None:
        return not still_found and not any(_was_ended(traces.get(rank)) for rank in finding.culprit_ranks)
    waiting = _waiting(finding.divergence)
    return bool(waiting) and all(_completed(traces.get(rank), operation) for rank, operation in waiting.items())


def lasted_ns(finding: Finding, evidence: Evidence) -> int | None:
    """How long ranks waited in what a finding says that they wait in, if all of them have got through it since."""
    if finding.divergence is None or finding.divergence.time is None:
        return None
    traces = {trace.rank: trace for trace in evidence.traces}
    waiting = _waiting(finding.divergence)
    ends = [_end_of(traces.get(rank), operation) for rank, operation in waiting.items()]
    known = [end for end in ends if end is not None]
    return max(known) - finding.divergence.time if known and len(known) == len(ends) else None


def still_waits(finding: Finding, evidence: Evidence) -> bool:
    """Whether all ranks of which a finding says that they wait are in the same operations still (or failed in them)."""
    traces = {trace.rank: trace for trace in evidence.traces}
    waiting = _waiting(finding.divergence) if finding.divergence is not None else {}
    now = [_again(traces[rank], operation) for rank, operation in waiting.items() if rank in traces]
    return bool(now) and all(operation is not None and (operation.pending or operation.failed) for operation in now)


def _waiting(divergence: Divergence) -> Mapping[int, Operation]:
    return {
        rank: at.operation
        for rank, at in divergence.by_rank.items()
        if at.state is not OperationState.ABSENT and at.operation is not None and at.operation.pending
    }


def _was_ended(trace: Trace | None) -> bool:
    """Whether a rank's process is gone without having ended by itself and well."""
    return trace is not None and trace.exit is not None and not (trace.exit.announced and trace.exit.code in (0, None))


def _completed(trace: Trace | None, waited: Operation) -> bool:
    if trace is None:
        return False
    operation = _again(trace, waited)
    if operation is not None:
        return not operation.pending and not operation.failed
    # What was overwritten has been over for long.
    return bool(len(trace.operations)) and trace.dropped > 0


def _again(trace: Trace, known: Operation) -> Operation | None:
    """An operation in a later look at its rank; rows are counted from the oldest that is still kept."""
    same = (known.entered, known.group, known.seq)
    return next((each for each in trace.operations.rows(trace.rank) if (each.entered, each.group, each.seq) == same), None)


def _end_of(trace: Trace | None, waited: Operation) -> int | None:
    operation = _again(trace, waited) if trace is not None else None
    if operation is None or operation.pending or operation.failed:
        return None
    return operation.completed or operation.returned


def joined(live: Diagnosis, final: Diagnosis) -> Diagnosis:
    """The diagnosis at the end, led by what was reported while the job ran as far as it was not refuted.

    What the end shows besides (ranks killed by their launcher, time-outs) follows from that.
    """
    last = [_found_again(known, final) for known in live.findings]
    if not last or (None not in last and last[0] is final.findings[0]):
        return final
    both = zip(live.findings, last, strict=True)
    kept = [found or known for known, found in both if found is not None or known.status in _WORTH]
    root = next((index for index, known in enumerate(kept) if known.status in _STANDS), 0)
    for finding in final.findings:
        # What is not understood at the end is the end itself: a launcher that cleared up, time-outs.
        if finding.cause is not Cause.UNKNOWN and not any(finding is known or _same(finding, known) for known in kept):
            kept.append(replace(finding, follows_from=root))
    notes = tuple(dict.fromkeys((*live.notes, *final.notes)))
    return replace(final, findings=tuple(kept), status=live.status, notes=notes)


def _found_again(known: Finding, final: Diagnosis) -> Finding | None:
    return next((each for each in final.findings if _same(each, known) or _refines(each, known)), None)


def _refines(one: Finding, other: Finding) -> bool:
    """Whether one says whom to blame for what the other only says that it happened."""
    return (one.status, one.cause) == (other.status, other.cause) and not other.culprit_ranks


def _same(one: Finding, other: Finding) -> bool:
    return (one.status, one.cause, one.culprit_ranks) == (other.status, other.cause, other.culprit_ranks)
