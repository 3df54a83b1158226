"""A server that receives from anybody while everybody else waits for it."""

from __future__ import annotations

import pytest

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, Status, Trace

from .jobs import Op, job, left, trace

ANY = Op("recv", line=12, done=False)
MEETS = Op("barrier", line=37, done=False)


def server(received: int, world: int = 4, last: Op = ANY) -> Trace:
    return trace(0, [Op("recv", line=12)] * received + [last], world=world)


def worker(rank: int, sent: int, world: int = 4, meets: bool = True, **fields) -> Trace:
    return trace(rank, [Op("send", line=26, peer=0)] * sent + ([MEETS] if meets else []), world=world, **fields)


def test_the_one_that_sent_less_often_than_all_others() -> None:
    (finding,) = diagnose(job(server(14), worker(1, 5), worker(2, 4), worker(3, 5))).findings
    assert (finding.status, finding.cause, finding.certainty) == (Status.HANG, Cause.P2P_MISMATCH, Certainty.LIKELY)
    assert finding.culprit_ranks == (2,)
    assert finding.summary.startswith("Rank 2 has sent to rank 0 4 times, the others 5 times. Rank 0 waits in recv")
    assert "ranks 1-3 wait for it in barrier #1" in finding.summary
    assert finding.evidence[1] == "rank 2 has sent to it 4 times"


@pytest.mark.parametrize("sent", [(5, 5, 5), (4, 5, 6), (6, 5, 5), (4, 4, 5)], ids=str)
def test_where_counts_do_not_tell_nobody_is_blamed(sent: tuple[int, ...]) -> None:
    workers = [worker(rank, count) for rank, count in enumerate(sent, start=1)]
    (finding,) = diagnose(job(server(sum(sent)), *workers)).findings
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (Cause.P2P_MISMATCH, Certainty.PROVEN, ())


def test_with_two_senders_neither_is_odd() -> None:
    (finding,) = diagnose(job(server(3, world=3), worker(1, 2, world=3), worker(2, 1, world=3))).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.P2P_MISMATCH, ())


def test_who_may_still_send_keeps_it_open() -> None:
    evidence = job(server(13), worker(1, 5), worker(2, 4, meets=False), worker(3, 4), moving=(2,))
    assert all(finding.cause is not Cause.P2P_MISMATCH for finding in diagnose(evidence).findings)


def test_who_has_ended_sends_no_more() -> None:
    gone = worker(2, 4, meets=False, exit=left(50))
    (finding,) = diagnose(job(server(13), worker(1, 5), gone, worker(3, 5))).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXITED_EARLY, (2,))
