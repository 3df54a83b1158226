"""A circle is one only if its ranks are held: whoever goes on beside an operation may still come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, Evidence, MarkKind, OperationTable, Status, Trace

from .jobs import Op, job, mark, trace

GROUPS = {"default_pg": (0, 1, 2, 3), "bg": (0, 1, 2, 3)}
SOON_MS, LATE_MS = 20, 60_000


def two_threads(**observed) -> Evidence:
    """Main threads work in one group and background threads in another; rank 3's background thread is a moment ahead."""
    done, ahead = (Op("all_gather", line=50, group="bg", thread=2, done=done) for done in (True, False))
    others = [trace(rank, [Op(), done, Op(done=False)], groups=GROUPS) for rank in (0, 1, 2)]
    return job(*others, trace(3, [Op(), done, ahead], groups=GROUPS), **observed)


def sends_begun(**observed) -> Evidence:
    """Both sides have begun a send and have not come to their recv: nobody is known to wait."""
    return of_unknown_wait(job(*(trace(rank, [Op("send", peer=1 - rank, done=False)], world=2) for rank in (0, 1)), **observed))


def of_unknown_wait(evidence: Evidence) -> Evidence:
    """The same where it is not known whether anybody waits in the operations."""

    def unknown(one: Trace) -> Trace:
        table: OperationTable = one.operations
        return replace(one, operations=replace(table, calls=tuple(replace(call, is_async=None) for call in table.calls)))

    return replace(evidence, traces=tuple(map(unknown, evidence.traces)))


@pytest.mark.parametrize("made", [two_threads, sends_begun])
def test_who_may_still_come_is_awaited_and_makes_no_circle(made) -> None:
    diagnosis = diagnose(made(later_ms=SOON_MS))
    assert diagnosis.findings == ()
    assert diagnosis.awaiting
    moving = diagnose(made(later_ms=LATE_MS, moving=(0, 1, 2, 3)))
    assert all(finding.status is Status.SLOW for finding in moving.findings)


@pytest.mark.parametrize(("made", "cause"), [(two_threads, Cause.GROUP_ORDER_CYCLE), (sends_begun, Cause.P2P_MISMATCH)])
def test_what_has_lasted_for_as_long_as_a_hang_must_is_a_circle(made, cause: Cause) -> None:
    (finding,) = diagnose(made(later_ms=LATE_MS)).findings
    assert (finding.status, finding.cause) == (Status.HANG, cause)


def test_where_somebody_waits_the_records_alone_show_it() -> None:
    """Nobody has to wait for a circle of blocking calls of one thread each."""
    (finding,) = diagnose(replace(sends_begun(later_ms=SOON_MS), traces=blocking())).findings
    assert (finding.cause, finding.certainty) == (Cause.P2P_MISMATCH, Certainty.PROVEN)


def blocking() -> tuple[Trace, ...]:
    return tuple(trace(rank, [Op("send", peer=1 - rank, done=False)], world=2) for rank in (0, 1))


def test_a_rank_that_has_gone_on_since_is_not_held() -> None:
    ahead = tuple(replace(one, marks=(mark(MarkKind.FORWARD, 1),)) for one in blocking())
    assert diagnose(replace(sends_begun(later_ms=SOON_MS), traces=ahead)).findings == ()


def test_the_buckets_of_a_backward_are_no_other_thread() -> None:
    groups = {"default_pg": (0, 1), "tp": (0, 1)}
    bucket = Op(line=15, bucket="DDP bucket 0: w", thread=2)
    ways = ([bucket, Op(line=20, done=False)], [bucket, Op(line=30, group="tp", done=False)])
    found = diagnose(job(*(trace(rank, way, world=2, groups=groups) for rank, way in enumerate(ways)), later_ms=SOON_MS))
    assert [finding.cause for finding in found.findings] == [Cause.GROUP_ORDER_CYCLE]
