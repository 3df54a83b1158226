"""The picture of the ranks' sequences around the divergence: one lane for each set of equal ranks, aligned by number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from desync.report.model import Cell, CellState, Report, Window
from desync.report.table import positions, several_groups, short_op
from desync.report.text import bounded, place, rank_set, ranks_phrase, shapes
from desync.report.view import called

MAX_LANES = 40
MAX_LABEL = 28

_FAMILIES = (
    ("reduce", re.compile(r"^(all_)?reduce(?!_scatter)")),
    ("scatter", re.compile(r"scatter")),
    ("gather", re.compile(r"gather")),
    ("broadcast", re.compile(r"^broadcast")),
    ("barrier", re.compile(r"barrier")),
    ("exchange", re.compile(r"^all_to_all|alltoall")),
    ("p2p", re.compile(r"send|recv")),
    ("group", re.compile(r"_group|^init_|^destroy_")),
)
STATE_WORDS = {
    CellState.DONE: "done",
    CellState.WAITING: "waiting",
    CellState.ABSENT: "never came",
    CellState.MISMATCHED: "differs",
    CellState.FAILED: "failed",
    CellState.UNSEEN: "no record",
}
SIGNS = {
    CellState.DONE: "✓",
    CellState.WAITING: "…",
    CellState.ABSENT: "—",
    CellState.MISMATCHED: "≠",
    CellState.FAILED: "✗",
    CellState.UNSEEN: "?",
}


@dataclass(frozen=True, slots=True)
class Block:
    """One operation in the picture; ``family`` colours it, ``detail`` is the number of what is shown on a click."""

    family: str
    state: CellState
    label: str
    note: str
    hint: str
    detail: int | None

    @property
    def sign(self) -> str:
        """The state as a sign that needs no colour."""
        return SIGNS[self.state]


@dataclass(frozen=True, slots=True)
class Lane:
    """Ranks that did the same, and what they did."""

    ranks: str
    size: int
    culprit: bool
    blocks: tuple[Block | None, ...]


@dataclass(frozen=True, slots=True)
class Detail:
    """All that is known of one block."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole picture; ``columns`` name the positions, ``at`` is the one at which the ranks part."""

    columns: tuple[str, ...]
    at: int
    lanes: tuple[Lane, ...]
    left_out: int
    details: tuple[Detail, ...]
    families: tuple[str, ...]
    signs: tuple[tuple[str, str], ...]
    """Those that occur, with their words for the legend."""


def build_picture(report: Report, base: str | None) -> Picture | None:
    """The picture of a report's window; None if it has none."""
    window = report.window
    if window is None or not window.rows:
        return None
    culprits = set(report.verdict.culprit_ranks)
    rows = _chosen(window, culprits)
    details = _Details(base)
    grouped = several_groups(window)
    lanes = tuple(
        Lane(
            rank_set(ranks, 24),
            len(ranks),
            bool(culprits.intersection(ranks)),
            tuple(_block(cell, ranks, details, index == window.at, grouped) for index, cell in enumerate(cells)),
        )
        for ranks, cells in rows
    )
    used = {block.family for lane in lanes for block in lane.blocks if block and block.family}
    families = tuple(name for name, _ in _FAMILIES if name in used) + (("other",) if "other" in used else ())
    states = {block.state for lane in lanes for block in lane.blocks if block}
    signs = tuple((SIGNS[state], STATE_WORDS[state]) for state in CellState if state in states)
    return Picture(positions(window), window.at, lanes, _count(window, culprits) - len(lanes), details.made(), families, signs)


def family(op: str | None) -> str:
    """The kind of an operation, for its colour."""
    if op is None:
        return ""
    return next((name for name, pattern in _FAMILIES if pattern.search(op)), "other")


_Row = tuple[tuple[int, ...], tuple[Cell | None, ...]]


def _split(window: Window, culprits: set[int]) -> list[_Row]:
    """The rows, with culprits in rows of their own."""
    rows: list[_Row] = []
    for row in window.rows:
        for ranks in ([r for r in row.ranks if r in culprits], [r for r in row.ranks if r not in culprits]):
            if ranks:
                rows.append((tuple(ranks), row.cells))
    return rows


def _count(window: Window, culprits: set[int]) -> int:
    return len(_split(window, culprits))


def _chosen(window: Window, culprits: set[int]) -> list[_Row]:
    """At most MAX_LANES rows: the culprits', then those of most ranks; in the order of ranks."""
    rows = sorted(_split(window, culprits), key=lambda row: (not culprits.intersection(row[0]), -len(row[0]), row[0]))
    return sorted(rows[:MAX_LANES], key=lambda row: row[0])


class _Details:
    """Numbers the details; equal cells share one."""

    def __init__(self, base: str | None) -> None:
        self._base = base
        self._cells: dict[Cell, tuple[int, list[int]]] = {}

    def number(self, cell: Cell, ranks: Iterable[int]) -> int:
        """The number of a cell's detail, which will name these ranks too."""
        number, members = self._cells.setdefault(cell, (len(self._cells), []))
        members.extend(ranks)
        return number

    def made(self) -> tuple[Detail, ...]:
        return tuple(_detail(cell, ranks, self._base) for cell, (_, ranks) in self._cells.items())


def _block(cell: Cell | None, ranks: Sequence[int], details: _Details, at: bool, grouped: bool) -> Block | None:
    if cell is None:
        return None
    known = cell.op is not None
    label = bounded(short_op(cell.op), MAX_LABEL) if cell.op else STATE_WORDS[cell.state]
    if known and cell.state is CellState.ABSENT:
        label = f"in {label}"
    if cell.peer is not None:
        label += f" {'←' if 'recv' in (cell.op or '') else '→'}{cell.peer}"
    group = bounded(called(cell.group), MAX_LABEL) if grouped and cell.group and "_group" not in (cell.op or "") else ""
    note = ", ".join(filter(None, [STATE_WORDS[cell.state] if at and known else _bucket(cell), group]))
    hint = ", ".join(filter(None, [f"{ranks_phrase(ranks)}: {label}", STATE_WORDS[cell.state] if known else ""]))
    return Block(family(cell.op), cell.state, label, note, hint, details.number(cell, ranks) if known else None)


def _bucket(cell: Cell) -> str:
    match = re.search(r"bucket \d+", cell.bucket or "")
    return match.group() if match else ""


def _detail(cell: Cell, ranks: Iterable[int], base: str | None) -> Detail:
    rows = (
        ("ranks", rank_set(ranks, 60)),
        ("state", STATE_WORDS[cell.state]),
        ("group", cell.group or ""),
        ("tensors", " ".join(filter(None, [cell.dtype, _all_shapes(cell)]))),
        ("reduce op", cell.reduce_op or ""),
        ("root", "" if cell.root is None else f"rank {cell.root}"),
        ("peer", "" if cell.peer is None else f"rank {cell.peer}"),
        ("bucket", cell.bucket or ""),
        ("called at", place(cell.callsite, base, 100) if cell.callsite else ""),
    )
    return Detail(f"{cell.op} {cell.seq}", tuple((name, value) for name, value in rows if value))


def _all_shapes(cell: Cell) -> str:
    values = cell.shapes or ()
    return " ".join(shapes([shape]) for shape in values[:8]) + (f" +{len(values) - 8}" if len(values) > 8 else "")
