"""A recv from anybody that nobody can answer: all others wait for the rank that receives, or are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from desync.diagnosis.advice import UNEVEN_PAIRS
from desync.diagnosis.board import Board
from desync.diagnosis.frontier import Parting, divergence
from desync.diagnosis.held import is_held_in
from desync.diagnosis.words import called, counted, named, place, verb
from desync.model import Cause, Certainty, Finding, Kind, Operation, Status

MIN_SENDERS = 3
"""With fewer, one that sent less often is no more odd than one that sent more often."""


def findings(board: Board, held: Callable[[int], Sequence[Parting]], gone: Collection[int]) -> list[Finding]:
    """One finding for each rank that receives from anybody while no other can send; ``held``: the partings that hold a rank."""
    found = []
    for rank in board.traces:
        operation = _from_anybody(board, rank)
        others = _others(board, operation) if operation is not None else ()
        waits = {other: [here for here in held(other) if rank in here.absent] for other in others}
        places = [here for other in others for here in waits[other][:1]]
        if operation is not None and places and all(waits[other] or other in gone for other in others):
            found.append(_finding(board, operation, others, places[0]))
    return found


def _from_anybody(board: Board, rank: int) -> Operation | None:
    trace = board.traces[rank]
    newest = trace.operations.row(rank, -1) if len(trace.operations) else None
    if newest is None or not newest.pending or newest.call.kind is not Kind.P2P or newest.call.peer is not None:
        return None
    return newest if newest.call.op != "send" and is_held_in(board.evidence, trace, newest) else None


def _others(board: Board, operation: Operation) -> tuple[int, ...]:
    group = board.traces[operation.rank].groups.get(operation.group)
    return tuple(rank for rank in group.ranks if rank != operation.rank) if group is not None else ()


def _finding(board: Board, operation: Operation, others: tuple[int, ...], here: Parting) -> Finding:
    sent = _sent(board, operation, others)
    culprits, lead = _least(sent, operation.rank)
    waits = here.held_in(here.pending[0]) if here.pending else None
    where = f" in {called(waits)} at {place(waits.call.site)}" if waits is not None else ""
    return Finding(
        status=Status.HANG,
        cause=Cause.P2P_MISMATCH,
        certainty=Certainty.LIKELY if culprits else Certainty.PROVEN,
        culprit_ranks=culprits,
        summary=(
            f"{lead}Rank {operation.rank} waits in {called(operation)} at {place(operation.call.site)}; "
            f"{named(here.pending)} {verb(here.pending, 'waits', 'wait')} for it{where}: nobody is left to send."
        ),
        advice=UNEVEN_PAIRS,
        evidence=tuple(f"rank {rank} has sent to it {counted(sent[rank], 'time')}" for rank in sorted(sent)[:16]),
        time=max(operation.entered or 0, here.time or 0) or None,
        divergence=divergence(here, culprits=culprits),
    )


def _sent(board: Board, operation: Operation, others: tuple[int, ...]) -> dict[int, int]:
    """How often each of the others has sent to the rank in that group; empty if the beginning of one is lost."""
    if any(rank not in board.traces or board.traces[rank].dropped for rank in others):
        return {}
    sent = dict.fromkeys(others, 0)
    for group in board.groups:
        if group.kind == "p2p" and group.group.name == operation.group and group.group.ranks[1] == operation.rank:
            sender = group.group.ranks[0]
            sent[sender] = len(group.lanes[sender].rows) if sender in group.lanes else 0
    return sent


def _least(sent: dict[int, int], receiver: int) -> tuple[tuple[int, ...], str]:
    """The one rank that sent less often than all others, which did so equally often; with the words for it."""
    counts = Counter(sent.values()).most_common()
    if len(sent) < MIN_SENDERS or len(counts) != 2 or counts[1][1] != 1 or counts[1][0] > counts[0][0]:
        return (), ""
    (rank,) = (each for each, times in sent.items() if times == counts[1][0])
    often = f"{counted(counts[1][0], 'time')}, the others {counted(counts[0][0], 'time')}"
    return (rank,), f"Rank {rank} has sent to rank {receiver} {often}. "
