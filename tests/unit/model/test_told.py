from __future__ import annotations

from dataclasses import replace

from desync.model import Evidence, MarkKind, as_it_stood, without_failures
from tests.unit.diagnosis.jobs import HANG_AFTER, MS, START, Op, job, left, mark, raised, trace

TOLD = START + 3 * MS
DONE = [Op(), Op()]


def told(evidence: Evidence, at: int | None = TOLD) -> Evidence:
    return replace(evidence, job=replace(evidence.job, told_to_end=at))


def test_what_failed_before_has_failed_and_what_failed_since_is_open():
    early, late = (trace(0, [*DONE[:count], Op(failed=True)]) for count in (1, 3))
    (before,) = without_failures(told(job(early))).traces
    (since,) = without_failures(told(job(trace(0, [*DONE, Op(), Op(failed=True)])))).traces
    assert before is early
    assert [(row.failed, row.pending) for row in since.operations.rows(0)] == [(False, False)] * 3 + [(False, True)]
    assert late.operations.row(0, -1).failed


def test_ends_and_their_exceptions_are_as_of_then():
    marks = (mark(MarkKind.STEP, 1), raised("early", 2), raised("peer", 4), mark(MarkKind.EXIT, 5))
    killed = trace(0, DONE, exit=left(5, -15, announced=False), marks=marks, finished=START + 5 * MS)
    over = trace(2, DONE, exit=left(5, -15, announced=False), finished=START + 2 * MS)
    gone = trace(1, DONE, exit=left(2, -11, announced=False), marks=marks)
    evidence = told(job(killed, gone, over, ended=True))
    stood = as_it_stood(evidence)
    first, second, third = stood.traces
    assert (first.exit, first.finished, first.marks) == (None, None, marks[:2])
    assert (third.exit, third.finished) == (None, START + 2 * MS)
    assert second is gone, "who ended before was not ended by it"
    assert (stood.ended, stood.observed_at) == (False, TOLD)


def test_who_was_sent_the_signal_together_with_the_watcher_was_told_as_well():
    first, second = left(3, -15, announced=False), left(2, -11, announced=False)
    killed, crashed = trace(0, DONE, exit=first), trace(1, DONE, exit=second)
    stood = as_it_stood(told(job(killed, crashed, ended=True), TOLD + 400 * MS))
    assert stood.observed_at == TOLD
    assert [each.exit for each in stood.traces] == [None, second]
    stood = as_it_stood(told(job(killed, crashed, ended=True), TOLD + 501 * MS))
    assert [each.exit for each in stood.traces] == [first, second]


def test_nothing_changes_where_nobody_told():
    evidence = job(trace(0, [Op(failed=True)], exit=left(2, 1)), ended=True)
    assert as_it_stood(evidence) is evidence
    assert without_failures(evidence) is evidence


def test_who_does_not_end_in_time_is_judged_as_always():
    killed = trace(0, DONE, exit=left(5, -15, announced=False))
    soon = replace(told(job(killed)), observed_at=TOLD + HANG_AFTER - 1)
    late = replace(soon, observed_at=TOLD + HANG_AFTER)
    assert as_it_stood(soon).traces[0].exit is None
    assert as_it_stood(late) is late
    assert as_it_stood(replace(late, ended=True)).traces[0].exit is None
    assert as_it_stood(replace(soon, observed_at=None)).traces == (killed,)
