from __future__ import annotations

import signal
from dataclasses import replace

from desync.diagnosis.verdict import diagnose
from desync.model import Cause, Status
from tests.unit.diagnosis.jobs import Op, job, left, raised, trace

WORDS = ("what():  [enforce fail] 4160 vs 4.",)
PEER = "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer"


def calls(*, thread: int, done: bool, failed: bool = False) -> list[Op]:
    return [Op(), Op("all_gather", line=20, done=done, failed=failed, thread=thread), Op(line=10, done=done, failed=failed)]


def aborted(rank: int, thread: int):
    return trace(rank, calls(thread=thread, done=False), world=2, exit=left(3, code=-signal.SIGABRT, announced=False))


def lost(rank: int, thread: int):
    marks = (raised(PEER, 3, kind="RuntimeError"),)
    return trace(rank, calls(thread=thread, done=True, failed=True), world=2, marks=marks, exit=left(4, code=1))


def over(*ranks, words=()):
    return replace(job(*ranks, ended=True), last_words=words)


def test_native_code_that_ends_a_rank_while_its_threads_share_a_group_blames_no_rank() -> None:
    (finding,) = diagnose(over(lost(0, 2), aborted(1, 2), words=WORDS)).findings
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.GROUP_ORDER_CYCLE, (), Status.CRASH)
    assert finding.evidence == (
        "the job printed: what():  [enforce fail] 4160 vs 4.",
        "rank 1: all_gather #2 (float32[4]) at train.py:20 in main (thread 2), "
        "then all_reduce #3 (float32[4]) at train.py:10 in main (thread 1)",
    )


def test_with_one_thread_it_is_an_abort_with_its_last_words() -> None:
    (finding,) = diagnose(over(lost(0, 1), aborted(1, 1), words=WORDS)).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.KILLED, (1,))
    assert "the job printed: what():  [enforce fail] 4160 vs 4." in finding.evidence
    assert "native code" in finding.advice


def test_words_that_several_ranks_may_have_said_are_not_quoted() -> None:
    (finding,) = diagnose(over(aborted(0, 1), aborted(1, 1), words=WORDS)).findings
    assert not any("the job printed" in line for line in finding.evidence)


def test_lost_connections_after_threads_shared_a_group_may_have_come_of_that() -> None:
    (finding,) = diagnose(over(lost(0, 2), lost(1, 2))).findings
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.GROUP_ORDER_CYCLE, (), Status.UNKNOWN)
    (finding,) = diagnose(over(lost(0, 1), lost(1, 1))).findings
    assert finding.cause is Cause.UNKNOWN
