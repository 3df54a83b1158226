"""What a rendering says, whatever its format: the headline, the facts under it, and the tables, as plain words.

Foreign text is made harmless by the rendering: a terminal, a browser and Markdown each need something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from desync.model import Frame, Kind, RankState
from desync.report.frames import is_main, is_own, user_frames
from desync.report.model import DivergenceEntry, FindingEntry, MergedStack, Place, RankEntry, Report, Role
from desync.report.text import SENTENCE, bounded, count, exit_phrase, place, ranks_phrase, seconds

MAX_PLACES = 3
MAX_FAULTS = 3
WORTH_A_WORD_S = 2.0
"""A rank that kept the others waiting for less in one operation is an ordinary one."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a line; blanks at its ends belong to it."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """A line under the verdict: what it is about, and what is said."""

    label: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The whole line."""
        return "".join(part.text for part in self.parts)


def facts(report: Report, base: str | None) -> list[Fact]:
    """Who, in what, where, and what to change; files below ``base`` are shown relative to it."""
    places = report.verdict.places
    culprits = [item for item in places if is_culprit(report, item.ranks)]
    waiting = [item for item in places if not is_culprit(report, item.ranks)]
    found = [Fact("culprit", _place(report, item, base)) for item in culprits[:MAX_PLACES]]
    found += _more("culprit", culprits)
    if report.divergence:
        found.append(Fact(report.divergence.kind.replace("_", " "), _operation(report.divergence)))
    found += [Fact(_waiting(report, item), _place(report, item, base)) for item in waiting[:MAX_PLACES]]
    found += _more(_waiting(report, waiting[0]), waiting) if waiting else []
    if report.verdict.advice:
        found.append(Fact("what to change", (Part(bounded(report.verdict.advice, SENTENCE), strong=True),)))
    return found + _other_faults(report, base)


def _other_faults(report: Report, base: str | None) -> list[Fact]:
    """That there is more than the verdict: whoever mends only that would have a broken job again."""
    others = [finding for finding in report.findings[1:] if finding.follows_from is None]
    found = [Fact("another fault", _in_short(finding, base)) for finding in others[:MAX_FAULTS]]
    left = len(others) - len(found)
    return [*found, Fact("another fault", (Part(f"{left} more, see below"),))] if left else found


def _in_short(finding: FindingEntry, base: str | None) -> tuple[Part, ...]:
    who = f", {ranks_phrase(finding.culprit_ranks)}" if finding.culprit_ranks else ""
    where = f" at {place(finding.places[0].frame, base)}" if who and finding.places else ""
    return Part(f"{finding.status.value}: "), Part(finding.cause.value, strong=True), Part(f"{who}{where} (below)")


def late_line(report: Report) -> str | None:
    """Which rank the others had to wait for longest, if that was worth a word; it came, or the operation would not be over."""
    late = report.lateness
    entries = late.ranks if late is not None and late.aligned else ()
    worst = max(entries, key=lambda entry: entry.longest_s, default=None)
    if late is None or worst is None or worst.longest_s < WORTH_A_WORD_S or worst.longest_seq is None:
        return None
    others = "the other" if len(entries) == 2 else "the others"
    more = f", {seconds(worst.alone_s)} in all" if worst.alone_s >= worst.longest_s + WORTH_A_WORD_S else ""
    return (
        f"rank {worst.rank} let {others} wait {seconds(worst.longest_s)} for it alone{more}, and came "
        f"(operation {worst.longest_seq} of {called(late.group)}; of the last {late.operations} it came last to {worst.last})"
    )


def _more(label: str, places: Sequence[Place]) -> list[Fact]:
    """How many ranks are at places for which there is no room."""
    left = places[MAX_PLACES:]
    ranks = {rank for item in left for rank in item.ranks}
    text = f"{count(len(ranks), 'rank')} more, at {count(len(left), 'other place')}"
    return [Fact(label, (Part(text),))] if left else []


def is_culprit(report: Report, ranks: Iterable[int]) -> bool:
    """Whether one of the verdict's culprits is among the ranks."""
    return bool(set(ranks).intersection(report.verdict.culprit_ranks))


def who(report: Report) -> str:
    """The culprits in words; empty if there are none."""
    return ranks_phrase(report.verdict.culprit_ranks) if report.verdict.culprit_ranks else ""


def group_name(divergence: DivergenceEntry) -> str:
    """What people call the group."""
    name, description = called(divergence.group), divergence.description
    return f"{description} ({name})" if description and description != divergence.group else name


def called(group: str) -> str:
    """A group's name; torch calls groups that nobody named by a number."""
    return f"group {group}" if group.isdigit() else group


def ended(entry: RankEntry) -> bool:
    """Whether a rank's process is over, or about to be."""
    return entry.state in (RankState.EXITED, RankState.KILLED, RankState.RAISED)


def follows(finding: FindingEntry) -> str:
    """The words "follows from the verdict", or none."""
    if finding.follows_from is None:
        return ""
    source = "the verdict" if finding.follows_from == 0 else f"finding {finding.follows_from + 1}"
    return f"follows from {source}"


def job_line(report: Report) -> list[str]:
    """Size and versions of the job, and how it ended."""
    job = report.job
    said = [
        count(job.world_size, "rank") if job.world_size else "",
        f"{len(job.nodes)} nodes" if len(job.nodes) > 1 else "",
        f"torch {job.torch}" if job.torch else "",
        ", ".join(job.backends),
        f"ended with status {job.exit_code}" if job.exit_code else "",
    ]
    return [part for part in said if part]


def timing_line(report: Report) -> list[str]:
    """When the ranks parted, and how soon that was seen."""
    at, seen, stacks = report.timing.diverged_at, report.timing.detected_after_s, report.timing.stacks_after_s
    said = [
        f"diverged {at[:19].replace('T', ' ')} UTC" if at else "",
        f"seen {seconds(seen)} later" if seen is not None else "",
        f"stacks {seconds(stacks)} later" if stacks is not None and report.stacks else "",
    ]
    return [part for part in said if part]


RANK_HEAD = ("rank", "state", "batches", "forwards", "backwards", "steps", "last operation")


def rank_cells(entry: RankEntry) -> tuple[str, ...]:
    """What RANK_HEAD names after the rank itself."""
    told = entry.state is RankState.EXITED or (entry.state is RankState.KILLED and entry.exit_code is not None)
    state = exit_phrase(entry.exit_code) if told else entry.state.value
    done = entry.progress
    batches = f"{done.batches} (all)" if done.loader_exhausted else str(done.batches)
    last = f"{entry.last.op} {entry.last.seq}" if entry.last else "none"
    return (state, batches, str(done.forwards), str(done.backwards), str(done.steps), last)


def rank_rows(report: Report) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Ranks of which the same is said, with that, culprits apart from others; in the order of ranks."""
    rows: dict[tuple[tuple[str, ...], bool], list[int]] = {}
    for entry in report.ranks:
        rows.setdefault((rank_cells(entry), is_culprit(report, (entry.rank,))), []).append(entry.rank)
    return sorted((tuple(ranks), cells) for (cells, _), ranks in rows.items())


def exceptions(report: Report) -> list[tuple[list[int], str]]:
    """Each exception once with its ranks, the culprits' first."""
    same: dict[str, list[int]] = {}
    for entry in sorted(report.ranks, key=lambda entry: entry.rank not in report.verdict.culprit_ranks):
        if entry.exception:
            said = ": ".join(filter(None, [entry.exception.type, entry.exception.message]))
            same.setdefault(said, []).append(entry.rank)
    return [(ranks, said) for said, ranks in same.items()]


def telling_stacks(stacks: Sequence[MergedStack]) -> list[MergedStack]:
    """Main threads, and others that run the user's code; of each rank's thread only the best source."""
    found: list[MergedStack] = []
    seen: set[tuple[int, str]] = set()
    for stack in sorted(stacks, key=lambda stack: stack.source != "py-spy"):
        shown = tuple(frame for frame in stack.frames if not is_own(frame))
        if all(frame.is_native for frame in shown) or not (is_main(stack.thread) or user_frames(shown)):
            continue
        thread = "" if is_main(stack.thread) else stack.thread
        fresh = tuple(rank for rank in stack.ranks if (rank, thread) not in seen)
        seen.update((rank, thread) for rank in fresh)
        if fresh:
            found.append(MergedStack(fresh, stack.source, stack.thread, shown))
    return found


def _waiting(report: Report, item: Place) -> str:
    return "waited" if _over(report, item) else "waiting"


def _over(report: Report, item: Place) -> bool:
    """Whether the processes of these ranks are gone."""
    return all(ended(entry) for entry in report.ranks if entry.rank in item.ranks)


def _other(report: Report, item: Place) -> str:
    """An operation that is called as the divergence's is, and is another one."""
    for edge in report.waits:
        if edge.op == item.op and set(item.ranks) <= set(edge.ranks):
            towards = "from" if "recv" in edge.op else "to"
            whose = f"{towards} {ranks_phrase(edge.missing)}" if edge.kind is Kind.P2P else f"of {called(edge.group)}"
            return f"{edge.op} {edge.seq} {whose}"
    return f"another {item.op}"


def _place(report: Report, item: Place, base: str | None) -> tuple[Part, ...]:
    """``rank 2 (pid 7 on gpu-1) raised at train.py:42 in main``."""
    one = len(item.ranks) == 1
    process = _process(report, item.ranks[0]) if one and is_culprit(report, item.ranks) else ""
    caller = _caller(item)
    return (
        Part(f"{ranks_phrase(item.ranks)}{process} {_doing(report, item)} at "),
        Part(place(item.frame, base), strong=True),
        Part(f", from {place(caller, base)}" if caller else ""),
    )


def _caller(item: Place) -> Frame | None:
    return item.callers[0] if item.callers and item.callers[0].file != item.frame.file else None


def _doing(report: Report, item: Place) -> str:
    same = report.divergence is not None and item.op == report.divergence.op
    match item.role:
        case Role.WAITS:
            return f"called {'it' if same and not is_culprit(report, item.ranks) else item.op}"
        case Role.INSTEAD:
            return f"called {_other(report, item) if same and not is_culprit(report, item.ranks) else item.op}"
        case Role.RAISED:
            return "raised"
        case Role.EXITED:
            return "exited"
        case Role.AT:
            one = len(item.ranks) == 1
            return ("was" if one else "were") if _over(report, item) else ("is" if one else "are")
        case Role.LAST:
            return f"last called {item.op}"


def _process(report: Report, rank: int) -> str:
    entry = next((entry for entry in report.ranks if entry.rank == rank), None)
    if entry is None or entry.pid is None:
        return ""
    several = len({other.node for other in report.ranks}) > 1
    return f" (pid {entry.pid} on {entry.node})" if several and entry.node else f" (pid {entry.pid})"


def _operation(divergence: DivergenceEntry) -> tuple[Part, ...]:
    # Calls about groups are numbered together, and belong to no group.
    numbered = divergence.kind in ("collective", "p2p")
    whose = f" of {group_name(divergence)}" if numbered else ""
    return (
        Part(bounded(f"{divergence.op} {divergence.seq}", 60), strong=True),
        Part(bounded(f"{whose}, {ranks_phrase(divergence.group_ranks)}", 160)),
        Part(f"; {bounded(divergence.bucket, 160)}" if divergence.bucket else ""),
    )
