"""The report as Markdown for an issue tracker or a chat: short, and without what strangers must not see unless asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from desync.report import view
from desync.report.frames import cut_frames, is_main
from desync.report.lanes import SIGNS, STATE_WORDS
from desync.report.model import Cell, CellState, Report, Window
from desync.report.redact import Redaction, redacted
from desync.report.table import around, most_telling, positions, several_groups, short_op
from desync.report.text import SENTENCE, clean, place, rank_set, ranks_phrase

MAX_LINES = 59
MAX_EVIDENCE = 5
MAX_FINDINGS = 4
MAX_ROWS = 8
MAX_STACKS = 3
MAX_FRAMES = 4
MAX_NOTES = 4
BEFORE, AFTER = 3, 1

_SPECIAL = re.compile(r"([\\`*{}\[\]<>#|~@!$&]|(?<!\w)_|_(?!\w))")
"""An underscore inside a word is no markup: all_reduce stays readable where Markdown is shown as it is."""


def render_markdown(report: Report, *, full: bool = False, base: str | None = None) -> str:
    """At most MAX_LINES lines.  Unless ``full``, home directories, host names, addresses and secrets are replaced."""
    root = os.getcwd() if base is None else base
    if not full:
        report, root = redacted(report), Redaction(report).text(root)
    page = _Markdown(root)
    sections = [
        list(page.verdict(report)),
        list(page.table(report)),
        list(page.evidence(report)),
        list(page.stacks(report)),
        list(page.others(report)),
        list(page.ranks(report)),
        list(page.notes(report)),
        list(page.job(report)),
    ]
    return "\n".join(_fitting(sections)) + "\n"


def _fitting(sections: Sequence[list[str]]) -> list[str]:
    """All lines, or as many sections as fit: what is furthest from the verdict goes first, the last line stays."""
    kept = [section for section in sections if section]
    while sum(map(len, kept)) + len(kept) > MAX_LINES and len(kept) > 2:
        kept.pop(-2)
    lines: list[str] = []
    for section in kept:
        lines += [*([""] if lines else []), *section]
    return lines[:MAX_LINES]


def escape(text: str, limit: int = SENTENCE) -> str:
    """Foreign text as words of a Markdown paragraph or table cell: no markup, no mention, no link."""
    shown = _SPECIAL.sub(r"\\\1", clean(text, limit))
    # A bare address would become a link by itself, and a leading number or dash a list.
    return re.sub(r"^([-+]|\d+[.)])", r"\\\1", shown.replace("://", r"\://").replace("www.", r"www\."))


def code(text: str, limit: int = 200) -> str:
    """Foreign text as a code span, whatever backticks it has."""
    shown = clean(text, limit)
    fence = "`" * (max(map(len, re.findall(r"`+", shown)), default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown or ' '}{pad}{fence}"


class _Markdown:
    """The sections of the page."""

    def __init__(self, base: str) -> None:
        self.base = base

    def verdict(self, report: Report) -> Iterator[str]:
        verdict = report.verdict
        parts = [f"**{verdict.status.value.upper()}**", f"`{verdict.cause.value}`"]
        yield " · ".join([*parts, *filter(None, [view.who(report), verdict.certainty.value])])
        yield ""
        yield escape(verdict.summary)
        for number, fact in enumerate(view.facts(report, self.base)):
            if number == 0:
                yield ""
            yield f"- {fact.label}: {''.join(self.part(part, names_code=_names_code(fact)) for part in fact.parts)}"

    def part(self, part: view.Part, *, names_code: bool) -> str:
        if part.strong and names_code:
            return code(part.text)
        lead, trail = part.text[:1] == " ", part.text[-1:] == " "
        return f"{' ' if lead else ''}{escape(part.text)}{' ' if trail else ''}"

    def table(self, report: Report) -> Iterator[str]:
        if report.window is None or not report.window.rows:
            return
        window = around(report.window, BEFORE, AFTER)
        culprits, grouped = set(report.verdict.culprit_ranks), several_groups(window)
        looks: dict[tuple[tuple[str, ...], bool], list[int]] = {}
        for row in window.rows:
            cells = tuple(self.cell(cell, grouped) for cell in row.cells)
            for rank in row.ranks:
                looks.setdefault((cells, rank in culprits), []).append(rank)
        rows = sorted((tuple(sorted(ranks)), cells) for (cells, _), ranks in looks.items())
        yield f"| rank | {' | '.join(self.heads(window))} |"
        yield "|---" * (len(window.columns) + 1) + "|"
        for ranks, cells in most_telling(rows, culprits)[:MAX_ROWS]:
            mark = "► " if culprits.intersection(ranks) else ""
            yield f"| {mark}{rank_set(ranks)} | {' | '.join(cells)} |"

    def heads(self, window: Window) -> list[str]:
        names = [escape(name, 12) for name in positions(window)]
        return [f"**{name}**" if index == window.at else name for index, name in enumerate(names)]

    def cell(self, cell: Cell | None, grouped: bool) -> str:
        if cell is None:
            return ""
        op = escape(short_op(cell.op)) if cell.op else ""
        towards = "" if cell.peer is None else f"{'←' if 'recv' in (cell.op or '') else '→'}{cell.peer}"
        where = f"of {escape(view.called(cell.group))}" if grouped and cell.group and "_group" not in (cell.op or "") else ""
        word = "" if cell.state is CellState.DONE else STATE_WORDS[cell.state]
        if op and cell.state is CellState.ABSENT:
            return " ".join(filter(None, [SIGNS[cell.state], f"{word}, in {op}{towards}", where]))
        return " ".join(filter(None, [SIGNS[cell.state], f"{op}{towards}", where, word]))

    def evidence(self, report: Report) -> Iterator[str]:
        lines = report.findings[0].evidence if report.findings else ()
        yield from self.bullets("Evidence:", lines, MAX_EVIDENCE)

    def bullets(self, title: str, lines: Sequence[str], most: int) -> Iterator[str]:
        if lines:
            yield title
            yield ""
        for line in lines[:most]:
            yield f"- {escape(line)}"
        if len(lines) > most:
            yield f"- … {len(lines) - most} more"

    def stacks(self, report: Report) -> Iterator[str]:
        """The main threads' user frames; culprits' first."""
        merged: dict[tuple[str, ...], list[int]] = {}
        for stack in view.telling_stacks(report.stacks):
            if is_main(stack.thread):
                frames = tuple(place(frame, self.base, 80) for frame in cut_frames(stack.frames)[:MAX_FRAMES])
                merged.setdefault(frames, []).extend(stack.ranks)
        ordered = sorted(merged.items(), key=lambda item: (not view.is_culprit(report, item[1]), -len(item[1]), item[1]))
        if ordered:
            yield "```text"
        for frames, ranks in ordered[:MAX_STACKS]:
            yield f"{ranks_phrase(ranks)}, innermost first"
            yield from (f"  {clean(frame).replace('```', '` ``')}" for frame in frames)
        if ordered:
            yield "```"

    def others(self, report: Report) -> Iterator[str]:
        said = [
            " ".join(filter(None, [f"{finding.cause.value}: {finding.summary}", _aside(view.follows(finding))]))
            for finding in report.findings[1:]
        ]
        yield from self.bullets("Also found:", said, MAX_FINDINGS)

    def ranks(self, report: Report) -> Iterator[str]:
        for ranks, said in view.exceptions(report)[:MAX_STACKS]:
            yield f"- {ranks_phrase(ranks)}: {code(said)}"

    def notes(self, report: Report) -> Iterator[str]:
        yield from self.bullets("Notes:", report.notes, MAX_NOTES)

    def job(self, report: Report) -> Iterator[str]:
        version = f"desync {report.job.desync}" if report.job.desync else ""
        yield escape(" · ".join(filter(None, [*view.job_line(report), version])))


def _names_code(fact: view.Fact) -> bool:
    """Whether the strong part of a fact is a place or an operation, not a sentence."""
    return fact.label != "what to change"


def _aside(text: str) -> str:
    return f"({text})" if text else ""
