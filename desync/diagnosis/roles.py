"""Ranks that play one part: all of them send and receive from the same lines, so that their counts must be the same.

In a ring or an exchange with neighbours every rank makes the same calls, only with other partners.  The one whose count differs
from that of all others has left one out, or made one too many, also in the first turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from desync.diagnosis.board import Board
from desync.model import CallSite, Kind, Operation, Trace

MIN_OTHERS = 2
"""So many ranks besides the two sides must agree."""
MAX_RANKS = 64
"""So many ranks are asked."""

Line = tuple[str, str, CallSite | None]
"""Sends or recvs of a group from one line."""


def odd_count(board: Board, waits: Operation, short: int, waiters: Collection[int]) -> int | None:
    """Whose count is not that of all others: the rank that waits, or the one that it waits for; None if that does not show."""
    own = (waits.call.op, waits.group, waits.call.site)
    involved = [rank for rank in board.traces if rank in (waits.rank, short) or rank not in waiters][:MAX_RANKS]
    if short not in involved or waits.rank not in involved or any(board.traces[rank].dropped for rank in involved):
        return None
    counts = {rank: _counts(board.traces[rank]) for rank in involved}
    others = [rank for rank in involved if rank not in (waits.rank, short) and counts[rank][own]]
    answer = _answer(counts, others, own)
    if len(others) < MIN_OTHERS or answer is None:
        return None
    usual = {(counts[rank][own], counts[rank][answer]) for rank in others}
    if len(usual) != 1:
        return None
    number, answers = usual.pop()
    waited, answered = counts[waits.rank][own], counts[short][answer]
    if (waited, answered) == (number, answers - 1):
        return short
    return waits.rank if (waited, answered) == (number + 1, answers) else None


def _counts(trace: Trace) -> Counter[Line]:
    table = trace.operations
    lines = [(call.op, call.site) if call.kind is Kind.P2P else None for call in table.calls]
    found: Counter[Line] = Counter()
    for call, group in zip(table.call, table.group, strict=True):
        if (line := lines[call]) is not None:
            found[(line[0], table.groups[group], line[1])] += 1
    return found


def _answer(counts: Mapping[int, Counter[Line]], others: list[int], own: Line) -> Line | None:
    """The line from which all others make the counterpart; None if there are several."""
    op = "recv" if own[0] == "send" else "send"
    lines = {line for rank in others for line in counts[rank] if line[:2] == (op, own[1])}
    return lines.pop() if len(lines) == 1 else None
