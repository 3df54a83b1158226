"""Sends and recvs of gloo that have other tags than their partners': as many on both sides, and they never find each other.

NCCL takes no notice of tags.  gloo pairs the sends and recvs of one tag in their order, whatever else lies between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from desync.diagnosis.advice import OTHER_TAGS
from desync.diagnosis.board import Board, GroupBoard, Lane
from desync.diagnosis.pairing import has_waited_long, is_gloo
from desync.diagnosis.words import called, capital, named, place
from desync.model import AtDivergence, Cause, Certainty, Divergence, Finding, Operation, OperationState, Status


@dataclass(frozen=True, slots=True)
class Strangers:
    """A send and a recv of one pair that are left over, each with a tag that the other side does not use (any more)."""

    board: GroupBoard
    send: Operation
    recv: Operation

    @property
    def ranks(self) -> tuple[int, int]:
        """Sender and receiver."""
        return self.send.rank, self.recv.rank

    def __str__(self) -> str:
        """Both, as evidence."""
        return (
            f"rank {self.send.rank}: {called(self.send)} to rank {self.recv.rank} with tag {_tag(self.send)} at "
            f"{place(self.send.call.site)}; rank {self.recv.rank}: {called(self.recv)} with tag {_tag(self.recv)} at "
            f"{place(self.recv.call.site)}"
        )


def findings(board: Board) -> list[Finding]:
    """One finding for all pairs whose tags differ, where somebody has waited for as long as the user grants."""
    found = [each for group in board.groups if group.kind == "p2p" and (each := _strangers(group)) is not None]
    waited = [each for each in found if has_waited_long(board, each.send, each.recv)]
    return [_finding(waited)] if waited else []


def _strangers(group: GroupBoard) -> Strangers | None:
    source, destination = group.group.ranks
    sends, recvs = group.lanes.get(source), group.lanes.get(destination)
    if sends is None or recvs is None or not is_gloo(sends.trace, group.group.name):
        return None
    base = max(sends.first, recvs.first)
    send, recv = _left_over(sends, recvs, base), _left_over(recvs, sends, base)
    if send is None or recv is None or not (send.pending or recv.pending):
        return None
    return Strangers(group, send, recv)


def _left_over(lane: Lane, other: Lane, base: int) -> Operation | None:
    """The first operation of a lane, from a number on, for which the other side has none of its tag."""
    partners = Counter(_tag(operation) for operation in _operations(other, base))
    for operation in _operations(lane, base):
        if not partners[_tag(operation)]:
            return operation
        partners[_tag(operation)] -= 1
    return None


def _operations(lane: Lane, base: int) -> Iterable[Operation]:
    found = (lane.at(seq) for seq in range(base, lane.last + 1))
    return [operation for operation in found if operation is not None]


def _tag(operation: Operation) -> int:
    return operation.call.tag or 0


def _finding(found: list[Strangers]) -> Finding:
    first = min(found, key=lambda each: max(each.send.entered or 0, each.recv.entered or 0))
    send, recv = first.send, first.recv
    culprits = _of_all(found)
    what = (
        f"rank {send.rank} sends to rank {recv.rank} with tag {_tag(send)} ({called(send)} at {place(send.call.site)}), and "
        f"rank {recv.rank} receives with tag {_tag(recv)} ({called(recv)} at {place(recv.call.site)})"
    )
    who = f"{named(culprits)} and its partners use different tags: " if culprits else ""
    time = max(send.entered or 0, recv.entered or 0) or None
    return Finding(
        status=Status.HANG,
        cause=Cause.P2P_MISMATCH,
        certainty=Certainty.LIKELY,
        culprit_ranks=culprits,
        summary=capital(f"{who}{what}: they never find each other."),
        advice=OTHER_TAGS,
        evidence=tuple(map(str, found[:16])),
        time=time,
        divergence=Divergence(
            group=first.board.group,
            kind="p2p",
            seq=recv.seq,
            op=recv.call.op,
            by_rank={each.rank: AtDivergence(_state(each, culprits), each) for each in (send, recv)},
            time=time,
        ),
    )


def _state(operation: Operation, culprits: tuple[int, ...]) -> OperationState:
    if operation.rank in culprits or not (culprits or operation.pending):
        return OperationState.MISMATCHED
    return OperationState.WAITING if operation.pending else OperationState.COMPLETED


def _of_all(found: list[Strangers]) -> tuple[int, ...]:
    """The one rank whose tags are not those of several partners; with one partner nobody can say which is wrong."""
    ranks = set(found[0].ranks).intersection(*(each.ranks for each in found))
    return tuple(ranks) if len(ranks) == 1 else ()
