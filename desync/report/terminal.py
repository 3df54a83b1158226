"""The report on a terminal: verdict first, then the table in which the ranks part, then what it rests on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from desync.model import Frame, Status
from desync.report import view
from desync.report.frames import cut_frames, is_main
from desync.report.model import FindingEntry, MergedStack, Report
from desync.report.page import Page, joined
from desync.report.table import most_telling, render_table, what_it_shows
from desync.report.text import SENTENCE, place, rank_set, ranks_phrase
from desync.report.tree_text import MAX_LINES, tree_lines

MAX_EVIDENCE = 8
MAX_FINDINGS = 6
MAX_STACKS = 6
MAX_EXCEPTIONS = 6
MAX_NOTES = 8

_COLOURS = {
    Status.HANG: "red",
    Status.CRASH: "red",
    Status.MISMATCH: "magenta",
    Status.DRIFT: "magenta",
    Status.SLOW: "yellow",
    Status.HEALTHY: "green",
    Status.UNKNOWN: "yellow",
}


def render(report: Report, console: Console, base: str | None = None) -> None:
    """Print the report; files below ``base`` (the working directory if None) are shown relative to it."""
    page = Page(console)
    root = os.getcwd() if base is None else base
    if not report.findings:
        _quiet(page, report, root)
        return
    _verdict(page, report)
    _facts(page, report, root)
    _window(page, report)
    if report.findings[0].evidence:
        page.heading("Evidence")
        page.bullets(report.findings[0].evidence, MAX_EVIDENCE)
    _stacks(page, report, root)
    _also(page, report.findings[1:])
    _ranks(page, report)
    if report.notes:
        page.heading("Notes")
        page.bullets(report.notes, MAX_NOTES)
    page.blank()
    page.line(page.text(page.join(*view.job_line(report)), "dim"))
    if timing := view.timing_line(report):
        page.line(page.text(page.join(*timing), "dim"))


def _status(report: Report) -> Text:
    status = report.verdict.status
    return Text(status.value.upper(), style=f"bold {_COLOURS[status]}")


def _quiet(page: Page, report: Report, root: str) -> None:
    """A report without findings takes two or three lines, and the stacks if somebody looked at them."""
    page.line(joined(_status(report), Text("  "), page.text(report.verdict.summary, limit=SENTENCE)))
    if report.verdict.advice:
        page.line(page.text(report.verdict.advice, limit=SENTENCE), "  ")
    if report.job.world_size:
        page.line(page.text(page.join(*view.job_line(report)), "dim"), "  ")
    if late := view.late_line(report):
        page.line(page.text(late), "  late: ", "    ")
    _tree(page, report, root)
    for note in report.notes[:MAX_NOTES]:
        page.line(page.text(note, "dim"), "  note: ", "    ")
    page.rest(len(report.notes) - MAX_NOTES)


def _tree(page: Page, report: Report, root: str) -> None:
    """All stacks as one tree: where nobody is odd, what the ranks have in common tells most."""
    lines = tree_lines(report.stacks, (), root)
    if not lines:
        return
    page.heading("Stacks", ", ".join(["outermost first", *sorted({stack.source for stack in report.stacks})]))
    for line in lines[:MAX_LINES]:
        page.line(page.text(line.text, "" if line.strong else "dim"), "  " * (line.depth + 1))
    page.rest(len(lines) - MAX_LINES)
    page.blank()


def _verdict(page: Page, report: Report) -> None:
    verdict = report.verdict
    rest = page.join(verdict.cause.value, view.who(report), verdict.certainty.value)
    page.line(joined(_status(report), Text(f" {page.glyphs.dot} {rest}", style="bold")))
    page.blank()
    page.line(page.text(verdict.summary, limit=SENTENCE))


def _facts(page: Page, report: Report, root: str) -> None:
    """Who, in what, where, and what to change."""
    page.blank()
    for fact in view.facts(report, root):
        page.line(page.parts(fact), f"  {page.say(fact.label, 14):<15} ")


def _window(page: Page, report: Report) -> None:
    if report.window is None or report.divergence is None:
        return
    page.heading("Where they part", what_it_shows(report))
    render_table(page, report)


def _stacks(page: Page, report: Report, root: str) -> None:
    """The stacks that a person wants: main threads, and others that run the user's code; culprits' first."""
    shown = _displayed(report.stacks, set(report.verdict.culprit_ranks))
    if not shown:
        return
    sources = {stack.source for stack in shown}
    page.heading("Stacks", ", ".join(["innermost first", *sorted(sources)]))
    for stack in shown[:MAX_STACKS]:
        thread = "" if is_main(stack.thread) else f", thread {stack.thread}"
        source = f" ({stack.source})" if len(sources) > 1 else ""
        page.line(page.text(f"{ranks_phrase(stack.ranks)}{thread}{source}"), "  ")
        for frame in stack.frames:
            page.line(page.text(place(frame, root), "" if frame.is_users else "dim"), "    ")
    page.rest(len(shown) - MAX_STACKS)


def _displayed(stacks: Sequence[MergedStack], culprits: set[int]) -> list[MergedStack]:
    """Cut to what is shown, of each rank's thread only the best source, and merged again where the cut made them equal."""
    merged: dict[tuple[str, str, tuple[Frame, ...]], list[int]] = {}
    for stack in view.telling_stacks(stacks):
        merged.setdefault((stack.source, stack.thread, cut_frames(stack.frames)), []).extend(stack.ranks)
    found = [MergedStack(tuple(sorted(ranks)), source, thread, frames) for (source, thread, frames), ranks in merged.items()]
    return sorted(found, key=lambda stack: (not culprits.intersection(stack.ranks), -len(stack.ranks), stack.ranks))


def _also(page: Page, findings: Sequence[FindingEntry]) -> None:
    if not findings:
        return
    page.heading("Also found")
    for number, finding in enumerate(findings[:MAX_FINDINGS], start=2):
        who = ranks_phrase(finding.culprit_ranks) if finding.culprit_ranks else ""
        head = page.join(finding.cause.value, who, finding.certainty.value)
        summary = page.text(finding.summary, limit=SENTENCE)
        page.line(joined(Text(f"{head}. ", "bold"), summary, _link(finding)), f"  {number}. ")
        if finding.follows_from is None and finding.advice:
            page.line(page.text(finding.advice, limit=SENTENCE), "     ")
    page.rest(len(findings) - MAX_FINDINGS)


def _link(finding: FindingEntry) -> Text:
    return Text(f" ({view.follows(finding)})" if finding.follows_from is not None else "", "dim")


def _ranks(page: Page, report: Report) -> None:
    """How far each rank came, where that differs or a rank has ended."""
    if not any(map(view.ended, report.ranks)) and len({entry.progress for entry in report.ranks}) < 2:
        return
    groups: dict[tuple[str, ...], list[int]] = {}
    for entry in report.ranks:
        groups.setdefault(tuple(page.say(cell, 40) for cell in view.rank_cells(entry)), []).append(entry.rank)
    shown = most_telling([(tuple(ranks), cells) for cells, ranks in groups.items()], report.verdict.culprit_ranks)
    page.heading("Ranks")
    _grid(page, view.RANK_HEAD, [(rank_set(ranks, 18), *cells) for ranks, cells in shown])
    page.rest(len(groups) - len(shown))
    _exceptions(page, report)


def _grid(page: Page, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns with a head; those that hold nothing but zeros are left out."""
    used = [index for index in range(len(head)) if index < 2 or any(row[index] != "0" for row in rows)]
    widths = {index: max(len(row[index]) for row in [head, *rows]) for index in used}
    for number, row in enumerate([head, *rows]):
        line = "  ".join(row[index].ljust(widths[index]) for index in used)
        page.raw(Text(f"  {line}", "dim" if number == 0 else ""))


def _exceptions(page: Page, report: Report) -> None:
    """Each exception once, the culprits' first."""
    same: dict[str, list[int]] = {}
    for ranks, said in view.exceptions(report):
        same.setdefault(page.say(said, 240), []).extend(ranks)
    for said, members in list(same.items())[:MAX_EXCEPTIONS]:
        page.line(joined(Text(f"{ranks_phrase(members)}: "), Text(said, "red")), "  ", "    ")
