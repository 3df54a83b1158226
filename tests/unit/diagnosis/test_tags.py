"""Sends and recvs whose tags differ, on backends that heed tags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from desync.diagnosis import diagnose
from desync.model import Cause, Certainty, Evidence, Group, OperationState, Status, Trace

from .jobs import HANG_AFTER, MS, Op, job, trace


def send(to: int, tag: int | None, done: bool = True) -> Op:
    return Op("send", line=20, peer=to, tag=tag, done=done, is_async=True)


def recv(source: int, tag: int | None, done: bool = True) -> Op:
    return Op("recv", line=21, peer=source, tag=tag, done=done, is_async=True)


def on(made: Trace, backend: str | None = "cpu:gloo,cuda:gloo") -> Trace:
    return replace(made, groups={name: Group(name, group.ranks, backend=backend) for name, group in made.groups.items()})


def pair(sends: list[Op], recvs: list[Op], backend: str | None = "gloo", **fields: object) -> Evidence:
    ranks = (on(trace(0, sends, world=2), backend), on(trace(1, recvs, world=2), backend))
    return job(*ranks, frozen=(0, 1), **fields)


def halo(tags: dict[int, int], world: int = 4) -> Evidence:
    """A halo exchange; all agreed on tag 0 in its first turn, and each rank uses the tag given for it in the second."""
    ranks = []
    for rank in range(world):
        near = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < world]
        first = [one for peer in near for one in (send(peer, 0), recv(peer, 0))]
        second = [way(peer, tags[rank], done=tags[peer] == tags[rank] or way is send) for peer in near for way in (send, recv)]
        ranks.append(on(trace(rank, [*first, *second], world=world)))
    return job(*ranks, frozen=range(world))


def test_the_rank_whose_tags_are_not_those_of_two_partners() -> None:
    (finding,) = diagnose(halo({0: 5, 1: 4, 2: 5, 3: 5})).findings
    assert (finding.status, finding.cause, finding.certainty) == (Status.HANG, Cause.P2P_MISMATCH, Certainty.LIKELY)
    assert finding.culprit_ranks == (1,)
    assert finding.summary == (
        "Rank 1 and its partners use different tags: rank 1 sends to rank 0 with tag 4 (send #2 (float32[4]) at "
        "train.py:20 in main), and rank 0 receives with tag 5 (recv #2 (float32[4]) at train.py:21 in main): they never find "
        "each other."
    )
    assert len(finding.evidence) == 4
    assert finding.divergence is not None
    standing = finding.divergence.by_rank
    assert (standing[1].state, standing[0].state) == (OperationState.MISMATCHED, OperationState.WAITING)


def test_with_one_partner_nobody_is_blamed() -> None:
    (finding,) = diagnose(pair([send(1, 0), send(1, 7, done=False)], [recv(0, 0), recv(0, 8, done=False)])).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.P2P_MISMATCH, ())
    assert finding.summary.startswith("Rank 0 sends to rank 1 with tag 7 (send #2")
    assert finding.divergence is not None
    assert {each.state for each in finding.divergence.by_rank.values()} == {OperationState.WAITING}


def test_two_ranks_that_count_alike_leave_it_open() -> None:
    (finding,) = diagnose(halo({0: 5, 1: 4, 2: 4, 3: 5})).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.P2P_MISMATCH, ())
    assert len(finding.evidence) == 4


@pytest.mark.parametrize(
    ("sends", "recvs"),
    [
        ([send(1, 1), send(1, 2)], [recv(0, 2), recv(0, 1)]),
        ([send(1, None), send(1, 3, done=False)], [recv(0, 0), recv(0, 3, done=False)]),
    ],
    ids=["in another order", "none is zero"],
)
def test_tags_that_find_each_other(sends: list[Op], recvs: list[Op]) -> None:
    assert all("tag" not in finding.summary for finding in diagnose(pair(sends, recvs)).findings)


def test_what_may_still_come_is_waited_for() -> None:
    sends, recvs = [send(1, 1, done=False)], [recv(0, 2, done=False)]
    assert diagnose(pair(sends, recvs, later_ms=HANG_AFTER // MS - 1)).findings == ()
    assert len(diagnose(pair(sends, recvs, later_ms=HANG_AFTER // MS + 1)).findings) == 1


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl", None])
def test_backends_that_take_no_notice_of_tags(backend: str | None) -> None:
    evidence = pair([send(1, 7, done=False)], [recv(0, 8, done=False)], backend)
    assert all("tag" not in finding.summary for finding in diagnose(evidence).findings)


def test_beginnings_that_were_dropped_are_left_out() -> None:
    evidence = pair([send(1, 1), send(1, 2), send(1, 9, done=False)], [recv(0, 8, done=False)])
    sender, receiver = evidence.traces
    table = replace(receiver.operations, seq=type(receiver.operations.seq)("q", [3]))
    late = replace(evidence, traces=(sender, replace(receiver, operations=table, dropped=2)))
    (finding,) = diagnose(late).findings
    assert "with tag 9 (send #3" in finding.summary
