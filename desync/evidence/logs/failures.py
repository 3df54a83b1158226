"""Which rank an exception or an exit belongs to, and which of them only follow from others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from desync.evidence.logs import patterns as p
from desync.evidence.logs.facts import Ended, Facts, Traceback
from desync.evidence.logs.ranks import Ranks
from desync.evidence.logs.store import NO_LISTENER
from desync.evidence.logs.victims import is_no_error, is_victim
from desync.model import CallSite, Exit, Failure, Mark, MarkKind

SIGINT, SIGABRT, SIGKILL, SIGTERM = -2, -6, -9, -15
ENDED_BY_OTHERS = (SIGINT, SIGABRT, SIGTERM)
"""Signals that are weighed for themselves: a launcher's, and the one with which a watchdog ends its process."""
TIMED_OUT = "Watchdog caught collective operation timeout"
TOLD_OTHERWISE = (
    "monitoredBarrier",
    "store based barrier",
    "waiting for clients",
    "aught collective operation timeout",
    "DDP expects same model across all ranks",
    "appears not to match sizes",
    "op.preamble.length <= op.nbytes",
    p.REFUSED,
    NO_LISTENER,
    *("Worker failed with error '", "Engine core initialization failed", "EngineCore encountered an issue"),  # vLLM's parents
)
"""Errors that say something about other ranks: that is a claim or an operation, and no failure of who prints it."""


@dataclass(slots=True)
class Failures:
    """Marks and exits, by rank, and the tracebacks whose rank is not known."""

    marks: list[tuple[int, Mark]] = field(default_factory=list)
    exits: list[tuple[int, Exit, str | None, int | None]] = field(default_factory=list)
    anonymous: list[Traceback] = field(default_factory=list)
    unplaced: list[Ended] = field(default_factory=list)
    """Ends of processes whose rank is not known, and that are no clean-up."""
    victims: set[int] = field(default_factory=set)
    """Ranks that failed because others did (or did not come)."""
    aborted: set[int] = field(default_factory=set)
    """Those of them that signal 6 ended without a word of their own."""
    told: bool = False
    """The log itself says why ranks ended."""


def failures(facts: Facts, ranks: Ranks) -> Failures:
    """Sort out who failed of its own doing."""
    found = Failures()
    ended = _ended_by_rank(facts, ranks)
    named: set[int] = set()
    for traceback in _one_of_each_group(each for each in facts.tracebacks if _says_own(each)):
        rank = _rank_of(traceback, facts, ranks)
        if rank is None:
            found.anonymous.append(traceback)
        else:
            named.add(rank)
            found.marks.append((rank, _mark(traceback)))
    _adopt_anonymous(found, ended, named)
    _add_aborted(found, facts, ranks)
    _add_exits(found, ended, facts, ranks)
    return found


def _says_own(traceback: Traceback) -> bool:
    """Whether a traceback tells of a failure of who prints it."""
    if traceback.launcher or not traceback.type or any(words in traceback.message for words in TOLD_OTHERWISE):
        return False
    return not (traceback.handled or is_no_error(traceback.type, traceback.message))


def _one_of_each_group(tracebacks: Iterable[Traceback]) -> list[Traceback]:
    """Of the leaves of a group of exceptions one: the first that does not come of other ranks' failures, if any."""
    kept: list[Traceback] = []
    places: dict[int, int] = {}
    for each in tracebacks:
        place = len(kept) if each.tree is None else places.setdefault(each.tree, len(kept))
        if place == len(kept):
            kept.append(each)
        elif is_victim(kept[place].type, kept[place].message) and not is_victim(each.type, each.message):
            kept[place] = each
    return kept


def _ended_by_rank(facts: Facts, ranks: Ranks) -> dict[int, Ended]:
    """One end a rank: the summary's, where there is one; else the line about the process."""
    found: dict[int, Ended] = {}
    for each in facts.ended:
        rank = _rank_of_end(each, ranks)
        if rank is not None and (rank not in found or each.rank is not None):
            found[rank] = each
    return found


def _rank_of_end(ended: Ended, ranks: Ranks) -> int | None:
    if ended.rank is not None:
        return ended.rank
    if ended.task is not None:
        return ended.task if ranks.tasks_are_ranks else None
    rank = ranks.of_pid(ended.pid) if ended.pid is not None else None
    return ended.local if rank is None and ranks.single_node else rank


def _rank_of(traceback: Traceback, facts: Facts, ranks: Ranks) -> int | None:
    rank = ranks.of(traceback.speaker)
    if rank is not None:
        return rank
    found = p.RANK_IN_MESSAGE.search(traceback.message)
    if found is not None:
        return int(next(group for group in found.groups() if group is not None))
    gpu = p.GPU.search(traceback.message)
    if gpu is not None and ranks.single_node:
        return int(gpu[1] or gpu[2])
    return None


def _adopt_anonymous(found: Failures, ended: dict[int, Ended], named: set[int]) -> None:
    """A traceback without a rank belongs to the one rank that ended with status 1 and has none."""
    open_ = [rank for rank, each in ended.items() if each.code > 0 and rank not in named]
    if len(open_) == 1 and len(found.anonymous) == 1:
        found.marks.append((open_[0], _mark(found.anonymous.pop())))


def _mark(traceback: Traceback) -> Mark:
    memory = p.OUT_OF_MEMORY.search(f"{traceback.type}: {traceback.message}") is not None
    failure = Failure(
        type=traceback.type,
        message=traceback.message,
        frames=tuple(traceback.frames[:64]),
        uncaught=True,
        out_of_memory=memory or traceback.type == "MemoryError",
    )
    own = [frame for frame in traceback.frames if "-packages/" not in frame.file and "/lib/python3" not in frame.file]
    site = CallSite(tuple((own or traceback.frames)[:12])) if traceback.frames else None
    return Mark(MarkKind.EXCEPTION, traceback.time or traceback.order, value=traceback.type, site=site, failure=failure)


def _add_aborted(found: Failures, facts: Facts, ranks: Ranks) -> None:
    """Ranks whose watchdog ended them: the error that it printed is what they raised."""
    seen = {rank for rank, _ in found.marks}
    for timeout in facts.timeouts:
        rank = ranks.of_tagged(timeout.speaker, timeout.tag, timeout.group_rank)
        if rank is not None and rank not in seen:
            seen.add(rank)
            found.victims.add(rank)
            message = f"{TIMED_OUT}: {timeout.op} #{timeout.seq}"
            found.marks.append((rank, _backend_error(timeout.time or timeout.order, message, "DistBackendError")))
    for trouble in facts.troubles:
        rank = ranks.of(trouble.speaker)
        if trouble.kind not in ("nccl_error", "cuda_error") or rank is None or rank in seen:
            continue
        seen.add(rank)
        if trouble.kind == "nccl_error":
            found.victims.add(rank)
        kind = "DistBackendError" if trouble.kind == "nccl_error" else "RuntimeError"
        found.marks.append((rank, _backend_error(trouble.time or trouble.order, trouble.text, kind)))


def _backend_error(time: int, message: str, kind: str) -> Mark:
    return Mark(MarkKind.EXCEPTION, time, value=kind, failure=Failure(kind, message, uncaught=True))


def _add_exits(found: Failures, ended: dict[int, Ended], facts: Facts, ranks: Ranks) -> None:
    raised: set[int | None] = {rank for rank, _ in found.marks}
    kernel = {trouble.pid for trouble in facts.troubles if trouble.kind == "kernel"}
    own_faults = any(_is_own(mark) for _, mark in found.marks) or bool(found.anonymous)
    told = found.told = _told(facts)
    nobodys = [each for each in facts.ended if _rank_of_end(each, ranks) is None]
    found.unplaced = [each for each in nobodys if each.code != SIGTERM and _counts(each, kernel, own_faults, facts, told)]
    silent = _without_a_word(ended, facts, raised | _heard(facts, ranks)) if not _unheard(facts, ranks) else None
    for rank, each in ended.items():
        counts = rank in raised or _counts(each, kernel, own_faults, facts, told) or (rank == silent and not own_faults)
        if counts:
            found.exits.append((rank, Exit(time=each.time, code=each.code), each.host, each.pid))
        else:
            found.victims.add(rank)
            if each.code == SIGABRT:
                found.aborted.add(rank)


def _cleared_up(ended: Ended, facts: Facts) -> bool:
    """Whether its end tells nothing of it: above all if its launcher brought it about, after another had failed."""
    if ended.task is not None and ended.code > 0:
        # srun counts by node: what many others ended with as well is no more a fault of the one that is alone on its node.
        return any(each.kind == "srun_end" and each.number == ended.code for each in facts.troubles)
    return ended.code not in ENDED_BY_OTHERS and (ended.speaker.file, ended.pid) in facts.signalled


def _speaking(facts: Facts) -> list[Traceback]:
    """Tracebacks of ranks that ended with them, those of victims included."""
    own = (each for each in facts.tracebacks if each.type and not each.launcher and not each.handled)
    return [each for each in own if not is_no_error(each.type, each.message)]


def _heard(facts: Facts, ranks: Ranks) -> set[int | None]:
    """Ranks whose own words on their end are in the log, though these may speak of others: of who did not come to a barrier."""
    barriers = {each.by if each.reached is None else each.reached for each in facts.barriers}
    return {_rank_of(each, facts, ranks) for each in _speaking(facts)} | barriers


def _unheard(facts: Facts, ranks: Ranks) -> bool:
    """Whether words are left of a rank that no line names: they may be those of the rank that seems to have none."""
    return any(_rank_of(each, facts, ranks) is None for each in _speaking(facts))


def _without_a_word(ended: dict[int, Ended], facts: Facts, heard: set[int | None]) -> int | None:
    """The one rank that ended with a status although the log has no traceback for it."""
    silent = [rank for rank, each in ended.items() if each.code > 0 and rank not in heard and not _cleared_up(each, facts)]
    return silent[0] if len(silent) == 1 and not facts.timeouts else None


def _counts(ended: Ended, kernel: set[int | None], own_faults: bool, facts: Facts, told: bool) -> bool:
    """Whether an exit status says something about the rank itself, and not that others had failed before."""
    if _cleared_up(ended, facts):
        return False
    if ended.code == SIGKILL:
        # The launcher kills so what SIGTERM does not end; after a time-out that is no news.
        return ended.root or ended.pid in kernel or not (own_faults or facts.timeouts)
    if ended.code == SIGABRT and facts.exit_aborted:
        return False
    if ended.code < 0:
        return ended.code not in (SIGABRT, SIGINT) or not told  # SIGTERM is known to be the launcher's
    return not told


def _told(facts: Facts) -> bool:
    """Whether the log itself says why ranks ended."""
    beats = any(trouble.kind in ("heartbeat", "nccl_error", "cuda_error") for trouble in facts.troubles)
    tracebacks = any(not traceback.launcher and not traceback.handled for traceback in facts.tracebacks)
    return bool(facts.timeouts or facts.barriers or any(facts.rendezvous.values()) or tracebacks or beats)


def _is_own(mark: Mark) -> bool:
    return mark.failure is not None and not is_victim(mark.failure.type, mark.failure.message)
