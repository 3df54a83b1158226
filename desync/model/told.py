"""A job that was told to end, as it stood when it was told: what its ranks' ends look like afterwards is not their doing."""

from __future__ import annotations

import signal
from array import array
from dataclasses import replace

from desync.model.evidence import Evidence
from desync.model.traces import Trace
from desync.model.words import MarkKind

TOGETHER_NS = 500_000_000
"""A scheduler sends its signal to all processes of a job; ranks may be gone before their watcher has taken its own."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def _told(evidence: Evidence) -> int | None:
    told = evidence.job.told_to_end
    if told is None:
        return None
    ends = (trace.exit for trace in evidence.traces if trace.exit is not None and trace.exit.signal in _ENDING)
    together = (end.time for end in ends if end.time is not None and told - TOGETHER_NS <= end.time < told)
    return min(together, default=told)


def without_failures(evidence: Evidence) -> Evidence:
    """The evidence without failures of operations since the job was told to end: they are open, as they were then.

    A rank that is ended breaks the connections of its peers, and whether these get to notice it is a matter of milliseconds.
    """
    told = _told(evidence)
    return evidence if told is None else replace(evidence, traces=tuple(_reopened(trace, told) for trace in evidence.traces))


def as_it_stood(evidence: Evidence) -> Evidence:
    """The evidence as of the moment at which the job was told to end; the same if nobody has told it to.

    While the job still runs it is so for as long as the user lets a rank stand: who does not end by then is judged as always.
    """
    told, now = _told(evidence), evidence.observed_at
    if told is None or not (evidence.ended or (now is not None and now - told < evidence.hang_after_ns)):
        return evidence
    before = without_failures(evidence)
    traces = tuple(_without_end(trace, told) for trace in before.traces)
    return replace(before, traces=traces, observed_at=told, ended=False)


def _reopened(trace: Trace, told: int) -> Trace:
    table = trace.operations
    failed = [0 > -told >= time for time in table.completed]
    if not any(failed):
        return trace
    completed = array("q", (0 if was else time for was, time in zip(failed, table.completed, strict=True)))
    returned = array("q", (0 if was and time >= told else time for was, time in zip(failed, table.returned, strict=True)))
    return replace(trace, operations=replace(table, completed=completed, returned=returned))


def _without_end(trace: Trace, told: int) -> Trace:
    """The trace without its end if that came afterwards, and without what an end brings with it."""
    if trace.exit is None or trace.exit.time is None or trace.exit.time < told:
        return trace
    ends = (MarkKind.EXCEPTION, MarkKind.EXIT)
    marks = tuple(mark for mark in trace.marks if mark.kind not in ends or mark.time < told)
    finished = trace.finished if trace.finished is not None and trace.finished < told else None
    return replace(trace, marks=marks, exit=None, finished=finished)
