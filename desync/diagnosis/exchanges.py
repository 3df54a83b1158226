"""Sends and recvs that found each other and did not fit: another number of elements, another dtype."""

from __future__ import annotations

from collections import Counter
from math import prod

from desync.diagnosis.advice import advice
from desync.diagnosis.board import Board, GroupBoard, Lane
from desync.diagnosis.words import called, named, place
from desync.model import AtDivergence, Call, Cause, Certainty, Divergence, Finding, OperationState, Status

MAX_ODD = 1
"""More than so many misfits in a pair speak of wrong numbering, not of wrong calls."""

Load = tuple[tuple[int, ...], tuple[str, ...]]
"""What is exchanged: elements and dtype of each tensor."""


def findings(board: Board) -> list[Finding]:
    """One finding for each pair of ranks with a misfit."""
    found = []
    for group in board.groups:
        if group.kind == "p2p" and len(group.lanes) == len(group.group.ranks) == 2:
            misfits = _misfits(group)
            if 0 < len(misfits) <= MAX_ODD:
                found.append(_finding(group, misfits[0]))
    return found


def _load(call: Call) -> Load:
    tensors = call.inputs if call.op == "send" and call.inputs.shapes else call.outputs
    return tuple(prod(shape) for shape in tensors.shapes), tensors.dtypes


def _loads(lane: Lane) -> list[Load]:
    table = lane.trace.operations
    by_call = {call: _load(table.calls[call]) for call in {table.call[row] for row in lane.rows}}
    return [by_call[table.call[row]] for row in lane.rows]


def _misfits(group: GroupBoard) -> list[int]:
    """Sequence numbers at which both sides are known and differ."""
    one, other = group.lanes.values()
    low, high = max(one.first, other.first), min(one.last, other.last)
    if low > high:
        return []
    left = _loads(one)[low - one.first : high - one.first + 1]
    right = _loads(other)[low - other.first : high - other.first + 1]
    return [] if left == right else [low + place for place, (a, b) in enumerate(zip(left, right, strict=True)) if _differ(a, b)]


def _differ(one: Load, other: Load) -> bool:
    return bool(one[0] and other[0] and one[0] != other[0]) or bool(one[1] and other[1] and one[1] != other[1])


def _finding(group: GroupBoard, seq: int) -> Finding:
    operations = {rank: operation for rank, lane in group.lanes.items() if (operation := lane.at(seq)) is not None}
    culprits = tuple(rank for rank in operations if _unusual(group.lanes[rank], seq))
    culprits = culprits if len(culprits) == 1 else ()
    waits = any(operation.pending or operation.failed for operation in operations.values())
    words = [f"{named([rank])} {called(each)} at {place(each.call.site)}" for rank, each in operations.items()]
    times = [each.entered for each in operations.values() if each.entered]
    return Finding(
        status=Status.HANG if waits else Status.MISMATCH,
        cause=Cause.ARGUMENT_MISMATCH,
        certainty=Certainty.LIKELY,
        culprit_ranks=culprits,
        summary=f"A send and its recv do not fit: {' and '.join(words)}.",
        advice=advice(Cause.ARGUMENT_MISMATCH),
        time=max(times, default=None),
        divergence=Divergence(
            group=group.group,
            kind="p2p",
            seq=seq,
            op=next((each.call.op for rank, each in operations.items() if rank in culprits), "send"),
            by_rank={
                rank: AtDivergence(OperationState.MISMATCHED if rank in culprits else OperationState.COMPLETED, each)
                for rank, each in operations.items()
            },
            time=max(times, default=None),
        ),
    )


def _unusual(lane: Lane, seq: int) -> bool:
    """Whether a rank exchanged here what it does not usually exchange on this way."""
    loads = _loads(lane)
    usual, times = Counter(loads).most_common(1)[0]
    return times > 1 and loads[seq - lane.first] != usual
