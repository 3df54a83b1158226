"""Whether a rank is held in an operation that it has entered, or goes on beside it.

A rank that is held waits itself and is followed further; one that goes on may still do what others wait for.  The records
alone tell where one thread makes all calls and has entered this one to stay in it.  Elsewhere (an asynchronous operation, a
send or recv on which nobody is known to wait, several threads) only time tells.
"""

from __future__ import annotations

from desync.diagnosis.progress import number_of
from desync.model import Evidence, Motion, Operation, Trace


def is_held_in(evidence: Evidence, trace: Trace, operation: Operation) -> bool:
    """Whether a rank cannot go on before this pending operation is over, as far as can be known by now."""
    if _blocks(trace, operation):
        return True
    now, activity = evidence.observed_at, evidence.activities.get(trace.rank)
    if now is None or evidence.ended:
        return True  # nothing moves any more, or nobody looked whether it does
    if activity is not None and activity.motion is Motion.MOVING:
        return False
    return operation.entered is not None and now - operation.entered >= evidence.hang_after_ns


def _blocks(trace: Trace, operation: Operation) -> bool:
    """Whether it is the last that the rank's only thread has done, and was called to wait for it."""
    if operation.call.is_async is not False or operation.index != len(trace.operations) - 1:
        return False
    number = number_of(trace, operation)
    return _is_alone(trace) and not any(mark.after >= number for mark in trace.marks)


def _is_alone(trace: Trace) -> bool:
    """Whether one thread makes all calls, but for buckets: a backward ends before the thread that began it goes on."""
    table = trace.operations
    if min(table.thread) == max(table.thread):
        return True
    bucket = [call.bucket is not None for call in table.calls]
    return len({thread for thread, call in zip(table.thread, table.call, strict=True) if not bucket[call]}) < 2
