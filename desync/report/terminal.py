"""The report on a terminal: verdict first, then the table in which the ranks part, then what it rests on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from desync.model import Cause, Frame, RankState, Status
from desync.report.frames import is_main, is_native, is_user, user_frames
from desync.report.model import DivergenceEntry, FindingEntry, MergedStack, Place, RankEntry, Report, Role
from desync.report.page import Page
from desync.report.table import render_table
from desync.report.text import SENTENCE, count, exit_phrase, place, rank_set, ranks_phrase, seconds

MAX_EVIDENCE = 8
MAX_FINDINGS = 6
MAX_STACKS = 6
MAX_FRAMES = 8
MAX_ROWS = 12
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
    _verdict(page, report)
    if report.findings:
        _facts(page, report, root)
        if report.window:
            page.blank()
            render_table(page, report)
        _evidence(page, report.findings[0].evidence)
        _stacks(page, report, root)
        _also(page, report.findings[1:])
        _ranks(page, report)
    _notes(page, report)
    _footer(page, report)


def _verdict(page: Page, report: Report) -> None:
    verdict = report.verdict
    head = Text(verdict.status.value.upper(), style=f"bold {_COLOURS[verdict.status]}")
    dot = f" {page.glyphs.dot} "
    if not report.findings:
        page.line(head + Text("  ") + page.text(verdict.summary, limit=SENTENCE))
        if verdict.advice:
            page.line(page.text(verdict.advice, limit=SENTENCE), "  ")
        return
    who = [page.say(ranks_phrase(verdict.culprit_ranks))] if verdict.culprit_ranks else []
    rest = dot.join(["", verdict.cause.value, *who, verdict.certainty.value])
    page.line(head + Text(rest, style="bold"))
    page.blank()
    page.line(page.text(verdict.summary, limit=SENTENCE))


def _facts(page: Page, report: Report, root: str) -> None:
    verdict = report.verdict
    lines: list[tuple[str, Text]] = []
    lines += [("culprit", _place(page, report, item, root)) for item in verdict.places if _is_culprit(report, item)]
    if report.divergence:
        lines.append((report.divergence.kind.replace("_", " "), _operation(page, report.divergence)))
    others = [item for item in verdict.places if not _is_culprit(report, item)]
    lines += [("others", _place(page, report, item, root)) for item in others[:3]]
    if verdict.advice:
        lines.append(("what to change", page.text(verdict.advice, "bold", SENTENCE)))
    page.blank()
    for label, text in lines:
        page.line(text, f"  {page.say(label, 14):<15} ")


def _is_culprit(report: Report, item: Place) -> bool:
    return bool(set(item.ranks).intersection(report.verdict.culprit_ranks))


def _place(page: Page, report: Report, item: Place, root: str) -> Text:
    """``rank 2 (pid 7 on gpu-1) raised at train.py:42 in main``."""
    one = len(item.ranks) == 1
    doing = {
        Role.WAITS: f"wait{'s' if one else ''} in {item.op}, called at",
        Role.INSTEAD: f"{'is' if one else 'are'} in {item.op} instead, called at",
        Role.RAISED: "raised at",
        Role.AT: f"{'is' if one else 'are'} at",
        Role.LAST: f"last called {item.op} at",
    }[item.role]
    process = _process(report, item.ranks[0]) if one and _is_culprit(report, item) else ""
    text = page.text(f"{ranks_phrase(item.ranks)}{process} {doing} ")
    text += page.text(place(item.frame, root), "bold")
    if item.callers and item.callers[0].file != item.frame.file:
        text += page.text(f", from {place(item.callers[0], root)}")
    return text


def _process(report: Report, rank: int) -> str:
    entry = next((entry for entry in report.ranks if entry.rank == rank), None)
    if entry is None or entry.pid is None:
        return ""
    several = len({other.node for other in report.ranks}) > 1
    return f" (pid {entry.pid} on {entry.node})" if several and entry.node else f" (pid {entry.pid})"


def _operation(page: Page, divergence: DivergenceEntry) -> Text:
    text = page.text(f"{divergence.op} {divergence.seq}", "bold") + page.text(f" of group {divergence.group}")
    if divergence.description and divergence.description != divergence.group:
        text += page.text(f" ({divergence.description})")
    text += page.text(f", {ranks_phrase(divergence.group_ranks)}")
    return text + page.text(f"; {divergence.bucket}") if divergence.bucket else text


def _evidence(page: Page, lines: Sequence[str]) -> None:
    if not lines:
        return
    page.heading("Evidence")
    _bullets(page, lines, MAX_EVIDENCE)


def _bullets(page: Page, lines: Sequence[str], most: int) -> None:
    for line in lines[:most]:
        page.line(page.text(line), f"  {page.glyphs.bullet} ")
    if len(lines) > most:
        page.line(Text(f"{len(lines) - most} more in report.json", "dim"), "    ")


def _stacks(page: Page, report: Report, root: str) -> None:
    """The stacks that a person wants: main threads, and others that run the user's code; culprits' first."""
    shown = _displayed(report.stacks, set(report.verdict.culprit_ranks))
    if not shown:
        return
    page.heading("Stacks", "innermost first")
    for stack in shown[:MAX_STACKS]:
        thread = "" if is_main(stack.thread) else f", thread {stack.thread}"
        page.line(page.text(f"{ranks_phrase(stack.ranks)}{thread}") + Text(f"  {page.say(stack.source)}", "dim"), "  ")
        for frame in stack.frames:
            page.line(page.text(place(frame, root), "" if is_user(frame) else "dim"), "    ")
    if len(shown) > MAX_STACKS:
        page.line(Text(f"{len(shown) - MAX_STACKS} more in report.json", "dim"), "  ")


def _displayed(stacks: Sequence[MergedStack], culprits: set[int]) -> list[MergedStack]:
    """Cut to what is shown, of each rank's thread only the best source, and merged again where the cut made them equal."""
    merged: dict[tuple[str, str, tuple[Frame, ...]], list[int]] = {}
    seen: set[tuple[int, bool, str]] = set()
    for stack in sorted(stacks, key=lambda stack: stack.source != "py-spy"):
        if not (is_main(stack.thread) or user_frames(stack.frames)):
            continue
        thread = "" if is_main(stack.thread) else stack.thread
        fresh = [rank for rank in stack.ranks if (rank, is_main(stack.thread), thread) not in seen]
        seen.update((rank, is_main(stack.thread), thread) for rank in fresh)
        if fresh:
            merged.setdefault((stack.source, stack.thread, cut_frames(stack.frames)), []).extend(fresh)
    found = [
        MergedStack(tuple(sorted(ranks)), source, thread, frames) for (source, thread, frames), ranks in merged.items()
    ]
    return sorted(found, key=lambda stack: (not culprits.intersection(stack.ranks), -len(stack.ranks), stack.ranks))


def cut_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The user's frames, below the innermost Python frame that they led to; the three innermost if none is the user's."""
    own = user_frames(frames)
    if not own:
        return tuple(frames[:3])
    innermost = next((frame for frame in frames if not is_native(frame)), own[0])
    head = () if innermost == own[0] else (innermost,)
    return (*head, *own)[:MAX_FRAMES]


def _also(page: Page, findings: Sequence[FindingEntry]) -> None:
    if not findings:
        return
    page.heading("Also found")
    for number, finding in enumerate(findings[:MAX_FINDINGS], start=2):
        dot = f" {page.glyphs.dot} "
        who = [ranks_phrase(finding.culprit_ranks)] if finding.culprit_ranks else []
        head = dot.join([finding.cause.value, *who, finding.certainty.value])
        page.line(Text.assemble((head, "bold"), ". ") + page.text(finding.summary, limit=SENTENCE) + _link(finding), f"  {number}. ")
        if finding.follows_from is None and finding.advice:
            page.line(page.text(finding.advice, limit=SENTENCE), "     ")
    if len(findings) > MAX_FINDINGS:
        page.line(Text(f"{len(findings) - MAX_FINDINGS} more in report.json", "dim"), "  ")


def _link(finding: FindingEntry) -> Text:
    if finding.follows_from is None:
        return Text("")
    source = "the verdict" if finding.follows_from == 0 else f"finding {finding.follows_from + 1}"
    return Text(f" (follows from {source})", "dim")


def _ranks(page: Page, report: Report) -> None:
    """How far each rank came, where that differs or a rank has ended."""
    ended = {RankState.EXITED, RankState.KILLED, RankState.RAISED}
    if not any(entry.state in ended for entry in report.ranks) and len({entry.progress for entry in report.ranks}) < 2:
        return
    groups: dict[tuple[str, ...], list[RankEntry]] = {}
    for entry in report.ranks:
        groups.setdefault(_rank_cells(page, entry), []).append(entry)
    rows = [(rank_set([entry.rank for entry in entries], 18), *cells) for cells, entries in groups.items()]
    page.heading("Ranks")
    _grid(page, ("rank", "state", "batches", "forwards", "backwards", "steps", "last operation"), rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        page.line(Text(f"{count(len(rows) - MAX_ROWS, 'more row')} in report.json", "dim"), "  ")
    _exceptions(page, report.ranks)


def _rank_cells(page: Page, entry: RankEntry) -> tuple[str, ...]:
    state = exit_phrase(entry.exit_code) if entry.state in (RankState.EXITED, RankState.KILLED) else entry.state.value
    done = entry.progress
    batches = f"{done.batches} (all)" if done.loader_exhausted else str(done.batches)
    last = page.say(f"{entry.last.op} {entry.last.seq}", 40) if entry.last else "none"
    return (state, batches, str(done.forwards), str(done.backwards), str(done.steps), last)


def _grid(page: Page, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns with a head; those that hold nothing but zeros are left out."""
    used = [index for index in range(len(head)) if index < 2 or any(row[index] != "0" for row in rows)]
    widths = {index: max(len(row[index]) for row in [head, *rows]) for index in used}
    for number, row in enumerate([head, *rows]):
        line = "  ".join(row[index].ljust(widths[index]) for index in used)
        page.raw(Text(f"  {line}", "dim" if number == 0 else ""))


def _exceptions(page: Page, ranks: Sequence[RankEntry]) -> None:
    same: dict[str, list[int]] = {}
    for entry in ranks:
        if entry.exception:
            said = f"{entry.exception.type}: {entry.exception.message}" if entry.exception.type else entry.exception.message
            same.setdefault(page.say(said, 240), []).append(entry.rank)
    for said, members in list(same.items())[:MAX_ROWS]:
        page.line(Text(f"{ranks_phrase(members)}: ") + Text(said, "red"), "  ", "    ")


def _notes(page: Page, report: Report) -> None:
    if not report.notes:
        return
    if report.verdict.cause is Cause.NONE:
        for note in report.notes[:MAX_NOTES]:
            page.line(page.text(note, "dim"), "  note: ")
        return
    page.heading("Not seen")
    _bullets(page, report.notes, MAX_NOTES)


def _footer(page: Page, report: Report) -> None:
    parts = [count(report.job.world_size, "rank")] if report.job.world_size else []
    parts += [f"{len(report.job.nodes)} nodes"] if len(report.job.nodes) > 1 else []
    parts += [f"torch {report.job.torch}"] if report.job.torch else []
    parts += [", ".join(report.job.backends)] if report.job.backends else []
    timing = report.timing
    if report.findings:
        parts += [f"ended with status {report.job.exit_code}"] if report.job.exit_code is not None else []
        parts += [f"diverged {timing.diverged_at[:19].replace('T', ' ')} UTC"] if timing.diverged_at else []
        parts += [f"seen after {seconds(timing.detected_after_s)}"] if timing.detected_after_s is not None else []
        parts += [f"stacks after {seconds(timing.stacks_after_s)}"] if timing.stacks_after_s is not None else []
        page.blank()
    if parts:
        page.line(page.text(f" {page.glyphs.dot} ".join(parts), "dim"), "" if report.findings else "  ")
