"""The report on a terminal: verdict first, then the table in which the ranks part, then what it rests on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from desync.model import Frame, RankState, Status
from desync.report.frames import is_main, is_native, is_user, user_frames
from desync.report.model import DivergenceEntry, FindingEntry, MergedStack, Place, RankEntry, Report, Role
from desync.report.page import Page, joined
from desync.report.table import most_telling, render_table
from desync.report.text import SENTENCE, count, exit_phrase, place, rank_set, ranks_phrase, seconds

MAX_EVIDENCE = 8
MAX_FINDINGS = 6
MAX_STACKS = 6
MAX_FRAMES = 8
MAX_EXCEPTIONS = 6
MAX_PLACES = 3
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
        _quiet(page, report)
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
    page.line(page.text(_job(page, report), "dim"))
    if timing := _timing(page, report):
        page.line(page.text(timing, "dim"))


def _status(report: Report) -> Text:
    status = report.verdict.status
    return Text(status.value.upper(), style=f"bold {_COLOURS[status]}")


def _quiet(page: Page, report: Report) -> None:
    """A report without findings takes two or three lines."""
    page.line(joined(_status(report), Text("  "), page.text(report.verdict.summary, limit=SENTENCE)))
    if report.verdict.advice:
        page.line(page.text(report.verdict.advice, limit=SENTENCE), "  ")
    if report.job.world_size:
        page.line(page.text(_job(page, report), "dim"), "  ")
    for note in report.notes[:MAX_NOTES]:
        page.line(page.text(note, "dim"), "  note: ", "    ")
    page.rest(len(report.notes) - MAX_NOTES)


def _verdict(page: Page, report: Report) -> None:
    verdict = report.verdict
    who = ranks_phrase(verdict.culprit_ranks) if verdict.culprit_ranks else ""
    rest = page.join(verdict.cause.value, who, verdict.certainty.value)
    page.line(joined(_status(report), Text(f" {page.glyphs.dot} {rest}", style="bold")))
    page.blank()
    page.line(page.text(verdict.summary, limit=SENTENCE))


def _facts(page: Page, report: Report, root: str) -> None:
    """Who, in what, where, and what to change."""
    verdict = report.verdict
    culprits = [item for item in verdict.places if _is_culprit(report, item)]
    waiting = [item for item in verdict.places if not _is_culprit(report, item)]
    facts = [("culprit", _place(page, report, item, root)) for item in culprits[:MAX_PLACES]]
    if report.divergence:
        facts.append((report.divergence.kind.replace("_", " "), _operation(page, report.divergence)))
    facts += [(_waiting(report, item), _place(page, report, item, root)) for item in waiting[:MAX_PLACES]]
    if verdict.advice:
        facts.append(("what to change", page.text(verdict.advice, "bold", SENTENCE)))
    page.blank()
    for label, text in facts:
        page.line(text, f"  {page.say(label, 14):<15} ")


def _waiting(report: Report, item: Place) -> str:
    over = all(_ended(entry) for entry in report.ranks if entry.rank in item.ranks)
    return "waited" if over else "waiting"


def _is_culprit(report: Report, item: Place) -> bool:
    return bool(set(item.ranks).intersection(report.verdict.culprit_ranks))


def _place(page: Page, report: Report, item: Place, root: str) -> Text:
    """``rank 2 (pid 7 on gpu-1) raised at train.py:42 in main``."""
    one = len(item.ranks) == 1
    process = _process(report, item.ranks[0]) if one and _is_culprit(report, item) else ""
    doing = page.text(f"{ranks_phrase(item.ranks)}{process} {_doing(report, item)} at")
    caller = item.callers[0] if item.callers and item.callers[0].file != item.frame.file else None
    origin = page.text(f", from {place(caller, root)}" if caller else "")
    return joined(doing, Text(" "), page.text(place(item.frame, root), "bold"), origin)


def _doing(report: Report, item: Place) -> str:
    same = report.divergence is not None and item.op == report.divergence.op
    match item.role:
        case Role.WAITS | Role.INSTEAD:
            return f"called {'it' if same and not _is_culprit(report, item) else item.op}"
        case Role.RAISED:
            return "raised"
        case Role.AT:
            return "is" if len(item.ranks) == 1 else "are"
        case Role.LAST:
            return f"last called {item.op}"


def _ended(entry: RankEntry) -> bool:
    return entry.state in (RankState.EXITED, RankState.KILLED, RankState.RAISED)


def _process(report: Report, rank: int) -> str:
    entry = next((entry for entry in report.ranks if entry.rank == rank), None)
    if entry is None or entry.pid is None:
        return ""
    several = len({other.node for other in report.ranks}) > 1
    return f" (pid {entry.pid} on {entry.node})" if several and entry.node else f" (pid {entry.pid})"


def _group(divergence: DivergenceEntry) -> str:
    """What people call the group."""
    name, description = divergence.group, divergence.description
    return f"{description} ({name})" if description and description != name else name


def _operation(page: Page, divergence: DivergenceEntry) -> Text:
    name = page.text(f"{divergence.op} {divergence.seq}", "bold", 60)
    group = page.text(f"{_group(divergence)}, {ranks_phrase(divergence.group_ranks)}", limit=160)
    bucket = [Text("; "), page.text(divergence.bucket, limit=160)] if divergence.bucket else []
    return joined(name, Text(" of "), group, *bucket)


def _window(page: Page, report: Report) -> None:
    if report.window is None or report.divergence is None:
        return
    numbered = report.divergence.kind == "collective"
    what = f"operations of {_group(report.divergence)}, by number" if numbered else "each rank's last operations"
    page.heading("Where they part", what)
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
            page.line(page.text(place(frame, root), "" if is_user(frame) else "dim"), "    ")
    page.rest(len(shown) - MAX_STACKS)


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
        who = ranks_phrase(finding.culprit_ranks) if finding.culprit_ranks else ""
        head = page.join(finding.cause.value, who, finding.certainty.value)
        summary = page.text(finding.summary, limit=SENTENCE)
        page.line(joined(Text(f"{head}. ", "bold"), summary, _link(finding)), f"  {number}. ")
        if finding.follows_from is None and finding.advice:
            page.line(page.text(finding.advice, limit=SENTENCE), "     ")
    page.rest(len(findings) - MAX_FINDINGS)


def _link(finding: FindingEntry) -> Text:
    if finding.follows_from is None:
        return Text("")
    source = "the verdict" if finding.follows_from == 0 else f"finding {finding.follows_from + 1}"
    return Text(f" (follows from {source})", "dim")


def _ranks(page: Page, report: Report) -> None:
    """How far each rank came, where that differs or a rank has ended."""
    if not any(map(_ended, report.ranks)) and len({entry.progress for entry in report.ranks}) < 2:
        return
    groups: dict[tuple[str, ...], list[int]] = {}
    for entry in report.ranks:
        groups.setdefault(_rank_cells(page, entry), []).append(entry.rank)
    shown = most_telling([(tuple(ranks), cells) for cells, ranks in groups.items()], report.verdict.culprit_ranks)
    page.heading("Ranks")
    head = ("rank", "state", "batches", "forwards", "backwards", "steps", "last operation")
    _grid(page, head, [(rank_set(ranks, 18), *cells) for ranks, cells in shown])
    page.rest(len(groups) - len(shown))
    _exceptions(page, report)


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


def _exceptions(page: Page, report: Report) -> None:
    """Each exception once, the culprits' first."""
    same: dict[str, list[int]] = {}
    for entry in sorted(report.ranks, key=lambda entry: entry.rank not in report.verdict.culprit_ranks):
        if entry.exception:
            said = ": ".join(filter(None, [entry.exception.type, entry.exception.message]))
            same.setdefault(page.say(said, 240), []).append(entry.rank)
    for said, members in list(same.items())[:MAX_EXCEPTIONS]:
        page.line(joined(Text(f"{ranks_phrase(members)}: "), Text(said, "red")), "  ", "    ")


def _job(page: Page, report: Report) -> str:
    job = report.job
    return page.join(
        count(job.world_size, "rank") if job.world_size else "",
        f"{len(job.nodes)} nodes" if len(job.nodes) > 1 else "",
        f"torch {job.torch}" if job.torch else "",
        ", ".join(job.backends),
        f"ended with status {job.exit_code}" if job.exit_code else "",
    )


def _timing(page: Page, report: Report) -> str:
    timing = report.timing
    at, seen, stacks = timing.diverged_at, timing.detected_after_s, timing.stacks_after_s
    return page.join(
        f"diverged {at[:19].replace('T', ' ')} UTC" if at else "",
        f"seen {seconds(seen)} later" if seen is not None else "",
        f"stacks {seconds(stacks)} later" if stacks is not None else "",
    )
