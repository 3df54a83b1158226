"""The report as one HTML file: no script, nothing loaded from anywhere, and all foreign text as text.

What keeps the job's text from becoming markup: the template engine escapes every value; control characters and bidirectional
controls are shown as escapes; no value ever stands in a style, a script or the address of a link; and a Content-Security-Policy
in the file itself allows nothing but its own style sheet.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from desync.model import Certainty, Frame, OperationState, Status
from desync.report import view
from desync.report.ddp_picture import draw
from desync.report.ddp_text import STEP_ROWS, hidden_share
from desync.report.graph import BOX_HEIGHT, BOX_WIDTH, build_graph
from desync.report.lanes import STATE_WORDS, build_picture
from desync.report.model import Cell, CellState, Lateness, LatenessEntry, RankAtDivergence, Report
from desync.report.stack_tree import build_trees
from desync.report.table import what_it_shows
from desync.report.text import bounded, clean, place, rank_set, ranks_phrase, seconds, shapes
from desync.report.units import duration, size

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATES = Path(__file__).with_name("templates")
MAX_TEXT = 4000
MAX_ROWS = 48
"""Rows of a table of sets of ranks; every rank is in the table below it."""
MAX_LATE = 16
BAR = 200
"""Length of the longest bar, in pixels."""
MAX_EVERY_RANK = 4096

_HEADLINES = {
    Status.HANG: "The job hangs",
    Status.CRASH: "The job crashed",
    Status.MISMATCH: "The ranks disagree",
    Status.DRIFT: "The replicas drifted apart",
    Status.SLOW: "The job is slow",
    Status.HEALTHY: "Nothing is wrong",
    Status.UNKNOWN: "Not enough was seen",
}
_BLAME = {
    Certainty.PROVEN: " because of",
    Certainty.LIKELY: ", probably because of",
    Certainty.POSSIBLE: ", possibly because of",
}
_DIFFERS = {Certainty.PROVEN: "", Certainty.LIKELY: "probably ", Certainty.POSSIBLE: "possibly "}
_CERTAINTIES = {
    Certainty.PROVEN: "the records alone show it",
    Certainty.LIKELY: "something had to be inferred",
    Certainty.POSSIBLE: "it fits, and so might something else",
}
_STANDINGS = {
    OperationState.WAITING: STATE_WORDS[CellState.WAITING],
    OperationState.ABSENT: STATE_WORDS[CellState.ABSENT],
    OperationState.MISMATCHED: STATE_WORDS[CellState.MISMATCHED],
    OperationState.COMPLETED: STATE_WORDS[CellState.DONE],
}


def render_html(report: Report, base: str | None = None) -> str:
    """The page; files below ``base`` (the working directory if None) are shown relative to it."""
    root = os.getcwd() if base is None else base
    css = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return _template().render(_context(report, root), css=_trusted(css), style_hash=digest)


def _trusted(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - our own style sheet


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(ranks=ranks_phrase, rank_set=rank_set, duration=duration, bytes=size, cut=bounded)
    return environment.get_template("report.html.j2")


def _harmless(value: object) -> object:
    """What is written for a value: text without control characters, and never without an end."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    lead, trail = text[:1] == " ", text[-1:] == " " and len(text) > 1
    return f"{' ' if lead else ''}{clean(text, MAX_TEXT)}{' ' if trail else ''}"


def _context(report: Report, base: str) -> dict[str, Any]:
    culprits = report.verdict.culprit_ranks
    return {
        "report": report,
        "headline": _headline(report),
        "certainty": _CERTAINTIES[report.verdict.certainty],
        "who": view.who(report),
        "facts": view.facts(report, base),
        "picture": build_picture(report, base),
        "what_it_shows": what_it_shows(report),
        "standings": _standings(report, base),
        "graph": build_graph(report.waits, culprits),
        "box": (BOX_WIDTH, BOX_HEIGHT),
        "trees": build_trees(report.stacks, culprits),
        "rank_head": view.RANK_HEAD,
        "rank_rows": view.rank_rows(report),
        "exceptions": view.exceptions(report),
        "late": _latest(report.lateness),
        "draw": draw,
        "step_rows": STEP_ROWS,
        "hidden_share": hidden_share,
        "environment": _environment(report),
        "at": lambda frame: place(frame, base, 100),
        "follows": view.follows,
        "called": view.called,
        "is_culprit": functools.partial(view.is_culprit, report),
        "only_culprits": lambda ranks: set(ranks) <= set(culprits),
        "MAX_ROWS": MAX_ROWS,
        "MAX_EVERY_RANK": MAX_EVERY_RANK,
    }


def _headline(report: Report) -> str:
    """What happened, and through whom."""
    verdict = report.verdict
    said, who = _HEADLINES[verdict.status], view.who(report)
    if not who:
        return said
    if verdict.status in (Status.MISMATCH, Status.DRIFT):
        return f"{said}: {_DIFFERS[verdict.certainty]}{who} differ{'s' if len(verdict.culprit_ranks) == 1 else ''}"
    return f"{said}{_BLAME[verdict.certainty]} {who}"


def _standings(report: Report, base: str) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """What each set of ranks is in at the divergence: state, operation, tensors, arguments, call site."""
    if report.divergence is None:
        return []
    rows: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for rank, at in report.divergence.by_rank.items():
        instead = _instead(report, rank) if at.state is OperationState.ABSENT else None
        cells = _elsewhere(instead, base) if instead else _standing(report, rank, at, base)
        rows.setdefault((cells, view.is_culprit(report, (rank,))), []).append(rank)
    ordered = sorted(rows.items(), key=lambda item: (not item[0][1], -len(item[1]), item[1]))
    return [(tuple(ranks), cells) for (cells, _), ranks in ordered]


def _standing(report: Report, rank: int, at: RankAtDivergence, base: str) -> tuple[str, ...]:
    """A rank that called the operation of the divergence, another one at its place, or nothing."""
    return (
        _STANDINGS[at.state],
        _called(at),
        " ".join(filter(None, [at.dtype, shapes(at.shapes)])),
        _arguments(at, at.tag),
        _site(report, rank, at.callsite, base),
    )


def _instead(report: Report, rank: int) -> Cell | None:
    """The operation of another group or pair in which a rank is at the divergence, as the window has it."""
    window = report.window
    cells = [row.cells[window.at] for row in window.rows if rank in row.ranks] if window else []
    return next((cell for cell in cells if cell is not None and cell.op is not None), None)


def _elsewhere(cell: Cell, base: str) -> tuple[str, ...]:
    return (
        STATE_WORDS[cell.state],
        f"in {cell.op} {cell.seq}" + (f" of {view.called(cell.group)}" if cell.group and cell.peer is None else ""),
        " ".join(filter(None, [cell.dtype, shapes(cell.shapes)])),
        _arguments(cell),
        place(cell.callsite, base, 100) if cell.callsite else "",
    )


def _arguments(of: RankAtDivergence | Cell, tag: int | None = None) -> str:
    said = [
        f"reduce op {of.reduce_op}" if of.reduce_op else "",
        f"root {of.root}" if of.root is not None else "",
        f"peer {of.peer}" if of.peer is not None else "",
        f"tag {tag}" if tag is not None else "",
    ]
    return ", ".join(filter(None, said))


def _called(at: RankAtDivergence) -> str:
    """The operation that a rank called; of one that never came, the last before it."""
    if not at.op:
        return ""
    return f"{'last: ' if at.state is OperationState.ABSENT else ''}{at.op} {at.seq}"


def _site(report: Report, rank: int, frame: Frame | None, base: str) -> str:
    """Where a rank called; of one that called nothing there, where it is instead."""
    if frame is not None:
        return place(frame, base, 100)
    found = next((item for item in report.verdict.places if rank in item.ranks), None)
    return f"is at {place(found.frame, base, 100)}" if found else ""


def _latest(lateness: Lateness | None) -> list[tuple[LatenessEntry, int]]:
    """The ranks for which others waited longest, with the length of the bar."""
    if lateness is None:
        return []
    ordered = sorted(lateness.ranks, key=lambda entry: (-entry.alone_s, -entry.median_s, entry.rank))[:MAX_LATE]
    longest = ordered[0].alone_s or 1.0
    return [(entry, max(1, round(BAR * entry.alone_s / longest))) for entry in ordered]


def _environment(report: Report) -> list[tuple[str, str]]:
    job = report.job
    said = [
        ("command", " ".join(job.command)),
        ("ranks", str(job.world_size or "")),
        ("machines", ", ".join(job.nodes[:16]) + (f", … {len(job.nodes) - 16} more" if len(job.nodes) > 16 else "")),
        ("backends", ", ".join(job.backends)),
        ("torch", job.torch or ""),
        ("Python", job.python or ""),
        ("desync", job.desync or ""),
        ("attempt", str(job.attempt) if job.attempt else ""),
        ("started", _moment(job.started)),
        ("ended", _moment(job.ended)),
        ("exit status", "" if job.exit_code is None else str(job.exit_code)),
        ("ranks parted", _moment(report.timing.diverged_at)),
        ("seen", _later(report.timing.detected_after_s)),
        ("stacks taken", _later(report.timing.stacks_after_s) if report.stacks else ""),
    ]
    return [(name, value) for name, value in said if value]


def _moment(iso: str | None) -> str:
    """An ISO time as people read it; the milliseconds are kept."""
    return f"{iso[:23].replace('T', ' ')} UTC" if iso else ""


def _later(value: float | None) -> str:
    return "" if value is None else f"{seconds(value)} later"
