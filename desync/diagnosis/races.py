"""Threads of one rank that had operations of one group in flight at once, when the rank was ended in the middle of them.

A backend pairs the operations of a group in the order in which they reach it.  Where two threads use one group, chance decides
on that order on each rank, and it may differ even where the recorded order does not: the call is recorded before the backend
has it.  Gloo then meets data of the wrong size and aborts the process, or raises.
"""

from __future__ import annotations

from dataclasses import replace

from desync.diagnosis.advice import advice
from desync.diagnosis.board import Board
from desync.diagnosis.endings import Ending, Manner
from desync.diagnosis.ends import NATIVE, signal_name
from desync.diagnosis.order import in_order
from desync.diagnosis.suspect import Explanation
from desync.model import Cause, Certainty, Finding, Kind, Operation

_NEWEST = 16
"""So many of a rank's operations are looked at: threads that race have theirs at the very end."""


def racing(board: Board, rank: int) -> tuple[Operation, ...]:
    """The last unfinished operations of a rank in one group, if several threads made them; else none."""
    table = board.traces[rank].operations
    open_ones = [
        operation
        for index in range(max(0, len(table) - _NEWEST), len(table))
        if (operation := table.row(rank, index)).call.kind is Kind.COLLECTIVE
        and operation.call.completion_known
        and (operation.pending or operation.failed)
    ]
    for group in dict.fromkeys(operation.group for operation in open_ones):
        same = tuple(operation for operation in open_ones if operation.group == group)
        if len({operation.thread for operation in same}) > 1:
            return same
    return ()


def aborted(board: Board, ending: Ending) -> Explanation | None:
    """Native code ended the rank while its threads had operations of one group in flight."""
    if ending.manner is not Manner.KILLED or ending.signal not in NATIVE:
        return None
    operations = racing(board, ending.rank)
    if not operations:
        return None
    what = f"was ended by {signal_name(ending.signal)} while its threads were in group {operations[0].group} at once"
    lines = (*ending.printed, in_order(operations[:1], operations))
    return Explanation(Cause.GROUP_ORDER_CYCLE, Certainty.LIKELY, what, evidence=lines, time=ending.time, blames=False)


def behind(finding: Finding, board: Board, ranks: tuple[int, ...]) -> Finding:
    """A finding that cannot say what began it, with the threads of ``ranks`` as what may have, if they raced."""
    races = [found for rank in ranks if (found := racing(board, rank))]
    if not races:
        return finding
    return replace(
        finding,
        cause=Cause.GROUP_ORDER_CYCLE,
        summary=f"{finding.summary[:-1]}; threads were in group {races[0][0].group} at once.",
        advice=advice(Cause.GROUP_ORDER_CYCLE),
        evidence=(*finding.evidence, *(in_order(found[:1], found) for found in races)),
    )
