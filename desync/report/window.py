"""The last operations of each rank around the divergence, in common columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from desync.model import AtDivergence, Divergence, Evidence, Frame, Kind, Operation, OperationState, OperationTable, Trace
from desync.report.frames import bounded_frame
from desync.report.model import Cell, CellState, WaitEntry, Window, WindowRow
from desync.report.places import pending
from desync.report.text import NAME, bounded

BEFORE = 12
AFTER = 4
"""Columns before and after the one of the divergence; a narrow rendering shows fewer."""

_AT = {
    OperationState.WAITING: CellState.WAITING,
    OperationState.ABSENT: CellState.ABSENT,
    OperationState.MISMATCHED: CellState.MISMATCHED,
    OperationState.COMPLETED: CellState.DONE,
}

Cells = tuple[Cell | None, ...]


def build_window(
    evidence: Evidence, divergence: Divergence, waits: Sequence[WaitEntry] = (), *, circle: bool = False
) -> Window:
    """The window around ``divergence``; ranks with equal cells share a row, rows in the order of their lowest rank.

    ``circle``: the ranks hold each other up in different operations (``waits``).  The numbers of one group would show one
    side only; what tells is the order in which each rank came to where it waits.
    """
    positional = divergence.kind == "collective" and not circle
    cells_of: Callable[[Trace | None, Divergence, AtDivergence | None], Cells] = (
        _by_position if positional else _in_circle if circle else _by_recency
    )
    rows: dict[Cells, list[int]] = {}
    traces = {trace.rank: trace for trace in evidence.traces}
    members = divergence.group.ranks if positional else _held_by(divergence.by_rank, waits) if circle else ()
    for rank in sorted({*members, *divergence.by_rank}):
        cells = cells_of(traces.get(rank), divergence, divergence.by_rank.get(rank))
        rows.setdefault(cells, []).append(rank)
    return _trimmed(
        Window(
            group=divergence.group.name,
            columns=_columns(divergence, positional),
            at=BEFORE,
            rows=tuple(WindowRow(tuple(ranks), cells) for cells, ranks in rows.items()),
        )
    )


def _held_by(ranks: Iterable[int], waits: Sequence[WaitEntry]) -> set[int]:
    """These ranks, those for which they wait, those for which these wait, and so on."""
    found: set[int] = set()
    new = set(ranks)
    while new:
        found |= new
        new = {rank for edge in waits if new.intersection(edge.ranks) for rank in edge.missing} - found
    return found


def _columns(divergence: Divergence, positional: bool) -> tuple[str, ...]:
    if positional:
        return tuple(str(divergence.seq + offset) for offset in range(-BEFORE, AFTER + 1))
    return (*(f"-{back}" for back in range(BEFORE, 0, -1)), "now", *(f"+{on}" for on in range(1, AFTER + 1)))


def _trimmed(window: Window) -> Window:
    """Without outer columns in which no rank has anything."""
    used = [index for index in range(len(window.columns)) if any(row.cells[index] for row in window.rows)]
    first, last = min([window.at, *used]), max([window.at, *used])
    return Window(
        group=window.group,
        columns=window.columns[first : last + 1],
        at=window.at - first,
        rows=tuple(WindowRow(row.ranks, row.cells[first : last + 1]) for row in window.rows),
    )


def _by_position(trace: Trace | None, divergence: Divergence, standing: AtDivergence | None) -> Cells:
    """Cells at the sequence numbers around the divergence's."""
    low = divergence.seq - BEFORE
    width = BEFORE + 1 + AFTER
    found = _collectives(trace, divergence.group.name, low, low + width) if trace else {}
    first = min(found, default=divergence.seq)
    cells: list[Cell | None] = []
    for seq in range(low, low + width):
        if seq == divergence.seq:
            cells.append(_at(found.get(seq), standing, pending(trace)))
        elif operation := found.get(seq):
            cells.append(_cell(operation, _state(operation, seq > divergence.seq)))
        else:
            cells.append(Cell(CellState.UNSEEN) if 0 < seq < first else None)
    return tuple(cells)


def _collectives(trace: Trace, group: str, low: int, high: int) -> dict[int, Operation]:
    """The rank's collectives of ``group`` with ``low <= seq < high``, by sequence number."""
    table: OperationTable = trace.operations
    found: dict[int, Operation] = {}
    # A group may stand in the table more than once: what was known of it grew.
    numbers = {number for number, name in enumerate(table.groups) if name == group}
    for index in range(len(table) - 1, -1, -1):
        if table.group[index] not in numbers or table.calls[table.call[index]].kind is not Kind.COLLECTIVE:
            continue
        seq = table.seq[index]
        if seq < low:
            break
        if seq < high:
            found[seq] = table.row(trace.rank, index)
    return found


def _by_recency(trace: Trace | None, divergence: Divergence, standing: AtDivergence | None) -> Cells:
    """Cells of the operations that the rank entered last, the one of the divergence (or where it is instead) under "now"."""
    instead, operation = pending(trace), standing.operation if standing else None
    cell = _at(operation, standing, instead)
    if standing and operation and standing.state is OperationState.ABSENT and not operation.pending:
        return _around(trace, operation.index + 1, operation.index + 1, cell)  # it came to this one last
    return _around(trace, *_span(trace, operation or instead), cell)


def _in_circle(trace: Trace | None, divergence: Divergence, standing: AtDivergence | None) -> Cells:
    """The same for one rank of a circle: each waits in its own operation."""
    now = pending(trace)
    if now is None:
        return _by_recency(trace, divergence, standing)
    return _around(trace, *_span(trace, now), _cell(now, CellState.WAITING))


def _span(trace: Trace | None, now: Operation | None) -> tuple[int, int]:
    """The row of ``now``, and the one after it; without it the end of the table."""
    if trace is None:
        return 0, 0
    return (now.index, now.index + 1) if now is not None else (len(trace.operations), len(trace.operations))


def _around(trace: Trace | None, end: int, first: int, cell: Cell | None) -> Cells:
    """The last operations before the row ``end``, ``cell``, and the operations from the row ``first`` on."""
    table = trace.operations if trace else OperationTable()
    rank = trace.rank if trace else -1
    before: list[Cell | None] = [_past(table.row(rank, index)) for index in range(max(0, end - BEFORE), end)]
    after: list[Cell | None] = [_past(table.row(rank, index)) for index in range(first, min(len(table), first + AFTER))]
    return (*[None] * (BEFORE - len(before)), *before, cell, *after, *[None] * (AFTER - len(after)))


def _past(operation: Operation) -> Cell:
    return _cell(operation, _state(operation, later=False))


def _state(operation: Operation, later: bool) -> CellState:
    """Of an operation beside the divergence; one entered ``later`` in the group waits behind it unless it is known as done."""
    if operation.failed:
        return CellState.FAILED
    if operation.completed is not None or not (operation.pending or later):
        return CellState.DONE
    return CellState.WAITING


def _at(operation: Operation | None, standing: AtDivergence | None, instead: Operation | None) -> Cell | None:
    """The cell of the divergence itself; the diagnosis' word counts for its state.

    ``instead`` is the operation in which an absent rank stands, if that is known.
    """
    if standing is None:
        return _past(operation) if operation else Cell(CellState.UNSEEN)
    absent = standing.state is OperationState.ABSENT
    shown = standing.operation or operation or (instead if absent else None)
    state = _AT[standing.state]
    if shown is not None and shown.failed and standing.state in (OperationState.WAITING, OperationState.COMPLETED):
        state = CellState.FAILED
    if shown is None or (absent and not shown.holds):
        return Cell(state)
    return _cell(shown, state)


def _cell(operation: Operation, state: CellState) -> Cell:
    call = operation.call
    tensors = call.inputs if call.inputs.shapes else call.outputs
    frame: Frame | None = call.site.innermost if call.site and call.site.frames else None
    return Cell(
        state=state,
        group=operation.group,
        seq=operation.seq,
        op=bounded(call.op, NAME),
        bucket=bounded(call.bucket, NAME) if call.bucket else None,
        shapes=tensors.shapes or None,
        dtype=tensors.dtype,
        reduce_op=call.reduce_op,
        root=call.root,
        peer=call.peer,
        callsite=bounded_frame(frame) if frame else None,
    )
