"""The table rank x last operations, on which the point where the ranks part is seen at a glance.

Every column is headed by its position and by the operation that all ranks did there; a cell spells an operation only where the
ranks differ.  A bar stands before the column of the divergence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.cells import cell_len
from rich.text import Text

from desync.report.model import Cell, CellState, Report, Window, WindowRow
from desync.report.page import Page, joined
from desync.report.text import rank_set, shapes
from desync.report.view import called, group_name

MAX_ROWS = 12
BEFORE = 4
AFTER = 2
"""At most so many columns are shown before and after the one of the divergence."""
MAX_CELL = 30
GAP = "  "
NOW = "now"
"""The column of a window in which every rank is now, where sequences have no common positions."""

T = TypeVar("T")

_WORDS = {
    CellState.DONE: "",
    CellState.WAITING: "waiting",
    CellState.ABSENT: "absent",
    CellState.MISMATCHED: "mismatch",
    CellState.FAILED: "failed",
    CellState.UNSEEN: "no record",
}
_STYLES = {
    CellState.DONE: "green",
    CellState.WAITING: "yellow",
    CellState.ABSENT: "bold red",
    CellState.MISMATCHED: "bold red",
    CellState.FAILED: "magenta",
    CellState.UNSEEN: "dim",
}
_LONG_NAMES = re.compile(r"_(tensor|into_tensor|base|single|coalesced)(?=_|$)")


@dataclass(frozen=True, slots=True)
class _Column:
    """What a column looks like: the lines of its head, its cells, its width."""

    head: tuple[str, str, str]
    cells: tuple[Text, ...]
    at: bool

    @property
    def width(self) -> int:
        return max(map(cell_len, [*self.head, *(cell.plain for cell in self.cells)]))


def render_table(page: Page, report: Report) -> None:
    """The window of the report; nothing if it has none."""
    if report.window is None or not report.window.rows:
        return
    window = around(report.window, BEFORE, AFTER)
    culprits = set(report.verdict.culprit_ranks)
    columns = [_column(page, window, index) for index in range(len(window.columns))]
    rows = _merged(window.rows, columns, culprits)
    shown = most_telling(rows, culprits)
    labels = [rank_set(ranks, 18) for ranks, _ in shown]
    side = max(map(cell_len, ["rank", *labels]))
    columns = _fitting(columns, window.at, page.width - side - 4)
    _head(page, columns, side)
    for label, (ranks, index) in zip(labels, shown, strict=True):
        _row(page, columns, index, label, side, culprit=bool(culprits.intersection(ranks)))
    page.rest(len(rows) - len(shown))


def around(window: Window, before: int, after: int) -> Window:
    """The window with at most so many columns on each side of the divergence; rows that are equal now are one."""
    low, high = max(0, window.at - before), window.at + after + 1
    rows: dict[tuple[Cell | None, ...], list[int]] = {}
    for row in window.rows:
        rows.setdefault(row.cells[low:high], []).extend(row.ranks)
    kept = tuple(WindowRow(tuple(sorted(ranks)), cells) for cells, ranks in rows.items())
    return Window(window.group, window.columns[low:high], window.at - low, kept)


def _merged(rows: Sequence[WindowRow], columns: Sequence[_Column], culprits: set[int]) -> list[tuple[tuple[int, ...], int]]:
    """Ranks of the rows that look the same (culprits apart from others), with the index of one of those rows."""
    alike: dict[tuple[object, ...], tuple[list[int], int]] = {}
    for index, row in enumerate(rows):
        look = tuple(column.cells[index].plain for column in columns)
        for rank in row.ranks:
            alike.setdefault((look, rank in culprits), ([], index))[0].append(rank)
    return sorted((tuple(sorted(ranks)), index) for ranks, index in alike.values())


def most_telling(rows: Sequence[tuple[tuple[int, ...], T]], culprits: Iterable[int]) -> list[tuple[tuple[int, ...], T]]:
    """At most MAX_ROWS of rows (ranks, content): the culprits', then those of most ranks; in the order of ranks."""
    odd = set(culprits)
    ordered = sorted(rows, key=lambda row: (not odd.intersection(row[0]), -len(row[0]), row[0]))
    return sorted(ordered[:MAX_ROWS], key=lambda row: row[0])


def short_op(op: str) -> str:
    """all_gather_into_tensor is all_gather to people."""
    return _LONG_NAMES.sub("", op)


def what_it_shows(report: Report) -> str:
    """What the columns of a report's window are, in words."""
    if report.window is None or report.divergence is None or report.window.columns[report.window.at] == NOW:
        return "each rank's last operations"
    return f"operations of {group_name(report.divergence)}, by number"


def positions(window: Window) -> tuple[str, ...]:
    """The names of the columns; where ranks parted and went on, nobody is there "now"."""
    went_on = window.at + 1 < len(window.columns)
    return tuple("here" if went_on and name == NOW else name for name in window.columns)


def several_groups(window: Window) -> bool:
    """Whether the ranks stand in operations of different groups: then an operation is named with its group."""
    here = [row.cells[window.at] for row in window.rows]
    return len({cell.group for cell in here if cell is not None and cell.group is not None}) > 1


def _label(page: Page, cell: Cell, ops: set[str], grouped: bool) -> str:
    """The operation, shortened unless that hides how it differs from the column's others."""
    if cell.op is None:
        return ""
    short = short_op(cell.op)
    name = cell.op if any(short_op(other) == short and other != cell.op for other in ops) else short
    if cell.peer is not None:
        arrow = ("<-" if page.plain else "←") if "recv" in cell.op else ("->" if page.plain else "→")
        name += f"{arrow}{cell.peer}"
    if grouped and cell.group is not None and "_group" not in cell.op:
        name += f" of {called(cell.group)}"
    return page.say(name, MAX_CELL)


def _column(page: Page, window: Window, index: int) -> _Column:
    cells = [row.cells[index] for row in window.rows]
    present = [cell for cell in cells if cell is not None and cell.op is not None and cell.state is not CellState.ABSENT]
    ops = {cell.op or "" for cell in present}
    grouped = several_groups(window)
    labels = {_label(page, cell, ops, grouped) for cell in present}
    common = len(labels) == 1
    at = index == window.at
    fields = _differing(present) if at and common else ()
    own = ["" if cell is None else _label(page, cell, ops, grouped) for cell in cells]
    texts = tuple(_cell(page, cell, label, common, fields, at) for cell, label in zip(cells, own, strict=True))
    return _Column((_position(page, window, index), labels.pop() if common else "", _argument(present)), texts, at)


def _position(page: Page, window: Window, index: int) -> str:
    return page.say(positions(window)[index], 12)


def _argument(cells: Sequence[Cell]) -> str:
    """The bucket that all cells share, as "bucket 0"."""
    buckets = {cell.bucket for cell in cells}
    bucket = buckets.pop() if len(buckets) == 1 else None
    match = re.search(r"bucket \d+", bucket or "")
    return match.group() if match else ""


def _differing(cells: Sequence[Cell]) -> tuple[str, ...]:
    """The arguments that mismatched ranks gave otherwise than the others."""
    odd = [cell for cell in cells if cell.state is CellState.MISMATCHED]
    rest = [cell for cell in cells if cell.state is not CellState.MISMATCHED]
    return tuple(
        name
        for name in ("shapes", "dtype", "reduce_op", "root")
        if odd and {getattr(cell, name) for cell in odd} - {getattr(cell, name) for cell in rest}
    )


def _value(cell: Cell, name: str) -> str:
    value = getattr(cell, name)
    if name == "shapes":
        return shapes(value)
    return f"root {value}" if name == "root" and value is not None else str(value or "")


def _cell(page: Page, cell: Cell | None, label: str, common: bool, fields: Iterable[str], at: bool) -> Text:
    """A cell; its operation (``label``) is left out where it is ``common`` to the column."""
    if cell is None:
        return Text("")
    sign = getattr(page.glyphs, cell.state.value)
    if not at:
        words = ["" if common else label]
    elif cell.state is CellState.ABSENT:
        words = ["absent", f"in {label}" if label else ""]
    elif not common:
        words = [f"in {label}" if label else ""]
    else:
        words = [_WORDS[cell.state], *(page.say(_value(cell, name), MAX_CELL) for name in fields)]
    return Text(" ".join(filter(None, [sign, ", ".join(filter(None, words))])), style=_STYLES[cell.state])


def _fitting(columns: list[_Column], at: int, width: int) -> list[_Column]:
    """As many columns as fit: the outer ones go, those behind the divergence last of all but itself."""
    before, now, after = columns[:at], columns[at], columns[at + 1 :]
    while _total([*before, now, *after]) > width and (before or after):
        if len(before) > 1 or not after:
            before = before[1:]
        else:
            after = after[:-1]
    return [*before, now, *after]


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + len(GAP) for column in columns) + 2


def _bar(page: Page, column: _Column) -> Text:
    return Text(f"{page.glyphs.bar} " if column.at else "", style="bold")


def _head(page: Page, columns: Sequence[_Column], side: int) -> None:
    depth = 3 if len({column.head[2] for column in columns} - {""}) > 1 else 2
    for number in range(depth):
        parts = [Text("  " + ("rank" if number == 0 else "").ljust(side))]
        for column in columns:
            head = Text(column.head[number], "bold" if column.at else "dim")
            parts += [Text(GAP), _bar(page, column), _padded(head, column.width)]
        page.raw(joined(*parts))


def _row(page: Page, columns: Sequence[_Column], index: int, label: str, side: int, culprit: bool) -> None:
    sign = page.glyphs.culprit if culprit else " "
    parts = [_padded(Text(f"{sign} {label}", style="bold red" if culprit else ""), side + 2)]
    for column in columns:
        parts += [Text(GAP), _bar(page, column), _padded(column.cells[index], column.width)]
    page.raw(joined(*parts))


def _padded(text: Text, width: int) -> Text:
    return joined(text, Text(" " * (width - cell_len(text.plain))))
