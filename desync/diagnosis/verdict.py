"""From evidence to findings.

The steps are those of the design: partings of each group, who waits for whom, the roots of the waiting, and for each root the
first cause that explains it.  A rank that waits itself is a victim and is followed further; a rank that is alive, called
nothing wrong and is merely not there is *awaited* until it has been frozen for as long as the user grants.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from desync.diagnosis import ambiguity, anybody, chains, cycles, interrupted, pairing, rest, silent, structure, tags, teardown
from desync.diagnosis.advice import advice
from desync.diagnosis.board import Board, lay_out
from desync.diagnosis.causes import CAUSES, is_frozen, waited_long, without_gradients
from desync.diagnosis.endings import Ending, Manner, endings
from desync.diagnosis.frontier import Parting, all_partings, divergence, together
from desync.diagnosis.held import is_held_in
from desync.diagnosis.history import History
from desync.diagnosis.progress import number_of
from desync.diagnosis.suspect import Explanation, Suspect
from desync.diagnosis.words import called, named, of_several, place, verb
from desync.model import (
    CallSite,
    Cause,
    Certainty,
    Diagnosis,
    Evidence,
    Finding,
    Kind,
    Operation,
    RankState,
    Status,
    Trace,
    as_it_stood,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One explained suspect."""

    suspect: Suspect
    explanation: Explanation


def diagnose(evidence: Evidence) -> Diagnosis:
    """The findings for a job at one moment: the same evidence always gives the same answer."""
    stood = as_it_stood(evidence)
    board = lay_out(stood)
    case = Case(board, endings(stood), tuple(all_partings(board)))
    findings, awaiting = case.explain()
    lingering = teardown.lingering(board, case.ends, case.partings) if not findings and not awaiting else ()
    findings += teardown.hanging(board, case.ends, lingering)
    if stood is not evidence:
        findings += interrupted.findings(board, case.partings, awaiting, evidence) if not findings else []
        awaiting, lingering = {}, ()
    status = findings[0].status if findings else rest.status_without_finding(board, case.ends)
    return Diagnosis(
        findings=tuple(findings),
        status=status,
        states=case.states(evidence.ended, case.ends if stood is evidence else endings(evidence)),
        notes=_notes(evidence, board),
        awaiting=awaiting,
        lingering=lingering,
    )


class Case:
    """One diagnosis at work."""

    def __init__(self, board: Board, ends: Mapping[int, Ending], partings: tuple[Parting, ...]) -> None:
        self.board = board
        self.evidence = board.evidence
        self.partings = partings
        self.ends = _with_victims(board, ends, partings)
        groups = (here for group in board.groups if (here := together(group)) is not None)
        self._holding = _holding(board, (*partings, *groups))
        self.history = History(board.traces)
        self.sites: Callable[[int], frozenset[CallSite]] = lru_cache(maxsize=None)(self._sites)

    def _sites(self, rank: int) -> frozenset[CallSite]:
        calls = self.board.traces[rank].operations.calls
        return frozenset(call.site for call in calls if call.site is not None and call.kind is Kind.COLLECTIVE)

    def states(self, ended: bool, ends: Mapping[int, Ending]) -> dict[int, RankState]:
        """How each rank has ended, or else what it was doing when it was last seen."""
        waiting = {rank for parting in self.partings for rank in parting.pending}

        def state(rank: int) -> RankState:
            if rank in ends:
                return _STATES[ends[rank].manner]
            if ended:
                return RankState.UNKNOWN
            return RankState.WAITING if rank in waiting else RankState.RUNNING

        return {rank: state(rank) for rank in self.board.traces}

    def explain(self) -> tuple[list[Finding], dict[int, tuple[int, ...]]]:
        """All findings, first one first, and the ranks that are awaited."""
        findings: list[Finding] = []
        awaiting: dict[int, tuple[int, ...]] = {}
        explained: set[int] = set()
        for parting in self.partings:
            faults = self._faults(parting, awaiting)
            findings += self._merged(parting, faults)
            # A mismatch explains the end only of those that it stopped; whoever went on and ends later has another reason.
            explained.update((*parting.pending, *parting.failed) if parting.mismatch else (f.suspect.rank for f in faults))
            if parting.mismatch and not faults:
                findings.append(ambiguity.both_readings(parting, self.status(parting, ())))
        findings += rest.other_ends(self.board, self.ends, explained)
        if not awaiting and not _stops(findings):
            findings += tags.findings(self.board) or pairing.forgotten(self.board)
        blamed = (finding.culprit_ranks for finding in findings if finding.status is not Status.MISMATCH)
        findings += self._cycles({*explained, *awaiting, *(rank for ranks in blamed for rank in ranks)})
        if not awaiting and not _stops(findings):
            findings += anybody.findings(self.board, self.held, self.ends)
        if not awaiting and not _stops(findings):
            findings += rest.nobody_is_wrong(self.board, self.ends, self.partings)
        if not findings:
            findings += rest.only_victims(self.board, self.ends)
        findings += silent.findings(self.board, self.partings)
        findings = _stuck_in_made_groups(structure.blamed(findings, self.board))
        return _ordered(findings), {rank: ranks for rank, ranks in awaiting.items() if rank not in explained}

    def _faults(self, parting: Parting, awaiting: dict[int, tuple[int, ...]]) -> list[Fault]:
        faults = []
        for suspect in self._suspects(parting):
            explanation = self._explained(suspect)
            if explanation is not None:
                faults.append(Fault(suspect, explanation))
            elif suspect.can_come:
                awaiting[suspect.rank] = parting.came
        return faults

    def _explained(self, suspect: Suspect) -> Explanation | None:
        if suspect.can_come and not (is_frozen(suspect) or waited_long(suspect)):
            return None
        return next((found for cause in CAUSES if (found := cause(suspect)) is not None), None)

    def _suspects(self, parting: Parting) -> Iterable[Suspect]:
        """The ranks that this parting is due to, as far as that can be told."""
        if parting.mismatch:
            odd = parting.odd()
            if odd is None:
                odd = ambiguity.decide(
                    parting, self.history, lambda side: [self._suspect(parting, rank, side) for rank in side]
                )
            yield from (self._suspect(parting, rank, odd) for rank in odd)
        if parting.waits or parting.board.kind == "group_creation":
            absent = [rank for rank in parting.absent if not self._held_elsewhere(rank, parting)]
            yield from (self._suspect(parting, rank, parting.absent) for rank in absent)

    def _suspect(self, parting: Parting, rank: int, beside: tuple[int, ...]) -> Suspect:
        witness = next((other for cluster in parting.clusters for other in cluster if other not in beside), None)
        if witness is None:
            witness = next(other for cluster in parting.clusters for other in cluster if other != rank)
        theirs = parting.operation(witness)
        assert theirs is not None  # noqa: S101 - a rank of a cluster has an operation there
        return Suspect(
            evidence=self.evidence,
            parting=parting,
            trace=self.board.traces[rank],
            witness=self.board.traces[witness],
            theirs=theirs,
            own=parting.operation(rank),
            ending=self._ending_before(rank, parting.operation(rank)),
            sites=self.sites,
        )

    def _ending_before(self, rank: int, own: Operation | None) -> Ending | None:
        """How a rank ended, unless that came after it had made the wrong call: then it is what the call led to."""
        ending = self.ends.get(rank)
        if ending is None or own is None or own.entered is None:
            return ending
        if ending.failure is not None:
            # Not by time: what a ``finally`` block holds back is seen, and written down, when the next call is entered.
            return ending if ending.failure.after < number_of(self.board.traces[rank], own) else None
        return None if ending.time is not None and ending.time > own.entered else ending

    def _held_elsewhere(self, rank: int, here: Parting) -> bool:
        """Whether an absent rank waits itself, for others: then it is a victim, and what holds it is explained instead."""
        if rank in self.ends and not self.ends[rank].victim:
            return False
        return any(parting is not here for parting in self.held(rank)) or self._inside(rank)

    def _inside(self, rank: int) -> bool:
        """Whether the last that a rank did was to enter an operation that keeps it until it is over."""
        trace = self.board.traces[rank]
        if not len(trace.operations):
            return False
        newest = trace.operations.row(rank, -1)
        may_hold = newest.call.kind is Kind.P2P or newest.call.is_async is False
        return newest.pending and may_hold and is_held_in(self.evidence, trace, newest)

    def held(self, rank: int) -> tuple[Parting, ...]:
        """The partings (and operations that all ranks are in) that hold a rank up."""
        return self._holding.get(rank, ())

    def _cycles(self, others: set[int]) -> list[Finding]:
        """The circles among the partings in which nobody waits for any of ``others`` as well."""
        found: list[Finding] = []
        for cycle in cycles.all_cycles(self.partings, self.held):
            if all(others.isdisjoint((*parting.absent, *parting.pending)) for parting in cycle):
                found += self._marked(cycle) or [cycles.finding(cycle, self.history, self.board)]
        return found

    def _marked(self, cycle: tuple[Parting, ...]) -> list[Finding]:
        """The finding for the one rank of a circle whose marks show that it is past what the others wait for."""
        found = [
            (parting, Fault(suspect, explanation))
            for parting in cycle
            for suspect in (self._suspect(parting, rank, parting.absent) for rank in parting.absent if self.held(rank))
            if (explanation := without_gradients(suspect)) is not None
        ]
        return [self._finding(parting, [fault]) for parting, fault in found] if len(found) == 1 else []

    def _merged(self, parting: Parting, faults: list[Fault]) -> list[Finding]:
        """One finding for all suspects with the same cause."""
        by_cause: dict[Cause, list[Fault]] = {}
        for fault in faults:
            by_cause.setdefault(fault.explanation.cause, []).append(fault)
        return [self._finding(parting, same) for same in by_cause.values()]

    def _finding(self, parting: Parting, faults: list[Fault]) -> Finding:
        first = faults[0]
        cause = first.explanation.cause
        culprits = tuple(sorted(fault.suspect.rank for fault in faults))
        whats = list(dict.fromkeys(fault.explanation.what for fault in faults))
        lines = [line for fault in faults for line in fault.explanation.evidence]
        doubt = self._one_too_many(parting, cause)
        lines += [doubt] if doubt else []
        who = named(culprits)
        whats[0] = of_several(whats[0]) if len(culprits) > 1 else whats[0]
        what = whats[0] if len(whats) == 1 else f"{whats[0]} ({named([first.suspect.rank])}; the others alike)"
        return Finding(
            status=Status.SLOW if cause is Cause.SLOW_RANK else self.status(parting, culprits),
            cause=cause,
            certainty=Certainty.POSSIBLE if doubt else max((fault.explanation.certainty for fault in faults), key=_SURE.index),
            culprit_ranks=culprits if first.explanation.blames and not doubt else (),
            summary=f"{who[0].upper()}{who[1:]} {what}; {self._waiting(parting, culprits)}.",
            advice=first.explanation.advice or advice(cause),
            evidence=tuple(dict.fromkeys((*lines, *chains.links(parting, self.partings)))),
            time=first.explanation.time or parting.time,
            divergence=divergence(parting, culprits=culprits),
        )

    def _one_too_many(self, parting: Parting, cause: Cause) -> str | None:
        """Why those that came may have called once too often, where most did not come and never were at that line."""
        operation = parting.held_in(parting.came[0]) if parting.came else None
        unsure = cause in (Cause.STALLED_RANK, Cause.EXITED_EARLY) and not parting.mismatch and operation is not None
        if not unsure or operation is None or len(parting.absent) <= max(1, len(parting.came)):
            return None
        if _all_wait_for_input(self.evidence, parting.absent):
            return (
                f"{named(parting.absent)} all wait for input: that (a key of the store, a message, a file) may be for "
                f"{named(parting.came)} to give"
            )
        site = operation.call.site
        if site is None or any(site in self.sites(rank) for rank in parting.absent):
            return None
        came = named(parting.came)
        return f"{named(parting.absent)} were never seen at {place(site)}: {came} may have made a call that nobody else makes"

    def _waiting(self, parting: Parting, culprits: tuple[int, ...]) -> str:
        ranks = tuple(rank for rank in parting.came if rank not in culprits)
        held = tuple(rank for rank in ranks if rank in parting.pending or rank in parting.failed)
        operation = next((found for rank in (*held, *ranks) if (found := parting.held_in(rank)) is not None), None)
        if operation is None:
            return "nobody else came"
        ranks = held or ranks
        did = f"{verb(ranks, 'waits', 'wait')} in" if held else "went into"
        return f"{named(ranks)} {did} {called(operation)} at {place(operation.call.site)}"

    def status(self, parting: Parting, culprits: tuple[int, ...]) -> Status:
        """Crash if a rank's end is the fault (or came of it), hang if somebody waits, mismatch if nothing stopped them."""
        ended = (Manner.EXITED, Manner.RAISED, Manner.KILLED)
        gone = any(rank in self.ends and self.ends[rank].manner in ended for rank in culprits)
        if gone and parting.waits and not parting.mismatch:
            return Status.CRASH
        if parting.mismatch and self._ended_by(parting):
            return Status.CRASH
        return Status.HANG if parting.waits else Status.MISMATCH

    def _ended_by(self, parting: Parting) -> bool:
        """Whether the mismatch itself ended a rank, before anybody could have waited long for it."""
        for rank in parting.came:
            ending, operation = self.ends.get(rank), parting.operation(rank)
            if ending is None or operation is None or ending.manner not in (Manner.RAISED, Manner.KILLED):
                continue
            soon = ending.time is None or parting.time is None or ending.time - parting.time < _AT_ONCE_NS
            if soon and ending.signal != signal.SIGTERM and (operation.pending or operation.failed):
                return True
        return False


def _all_wait_for_input(evidence: Evidence, ranks: Iterable[int]) -> bool:
    """Whether each of these stands in a wait for what another process has to send."""
    activities = [evidence.activities.get(rank) for rank in ranks]
    return all(each is not None and each.waits_for in ("waits for input", "waits for the network") for each in activities)


def _holding(board: Board, partings: Iterable[Parting]) -> dict[int, tuple[Parting, ...]]:
    held: dict[int, list[Parting]] = {}
    for parting in partings:
        stuck = {*parting.failed, *(parting.came if parting.mismatch and parting.waits else ())}
        for rank in {*stuck, *parting.pending}:
            operation = parting.held_in(rank)
            if rank in stuck or operation is None or is_held_in(board.evidence, board.traces[rank], operation):
                held.setdefault(rank, []).append(parting)
    return {rank: tuple(found) for rank, found in held.items()}


def _stops(findings: list[Finding]) -> bool:
    """Whether one of them is what the job stands still or ended for; a mismatch that stopped nobody is not."""
    return any(finding.status is not Status.MISMATCH for finding in findings)


_SURE = list(Certainty)

_AT_ONCE_NS = 2_000_000_000
"""An error that comes this soon after the ranks parted is the backend's answer to the mismatch, not a time-out."""

_STATES = {
    Manner.RAISED: RankState.RAISED,
    Manner.HOLDING: RankState.RAISED,
    Manner.EXITED: RankState.EXITED,
    Manner.KILLED: RankState.KILLED,
}


def _with_victims(board: Board, ends: Mapping[int, Ending], partings: tuple[Parting, ...]) -> dict[int, Ending]:
    """Mark as victims those whose operation failed under them before they raised, whatever they raised then."""
    failed = {rank for parting in partings for rank in parting.failed}
    failed |= {rank for rank, ending in ends.items() if ending.failure is None and _failed_at_last(board.traces[rank])}
    return {rank: replace(ending, victim=True) if rank in failed else ending for rank, ending in ends.items()}


def _failed_at_last(trace: Trace) -> bool:
    """Whether the newest operations of a rank failed under it, as far as they did not stay open."""
    for index in range(len(trace.operations) - 1, -1, -1):
        operation = trace.operations.row(trace.rank, index)
        if operation.failed or not operation.pending:
            return operation.failed
    return False


def _stuck_in_made_groups(findings: list[Finding]) -> list[Finding]:
    """Where ranks made different groups under one name, an operation that does not finish afterwards comes of that."""
    made = next((each for each in findings if each.cause is Cause.GROUP_CREATION and each.status is Status.MISMATCH), None)
    if made is None:
        return findings
    stuck = [each for each in findings if each.cause is Cause.COMMUNICATION_STALLED and (each.time or 0) >= (made.time or 0)]
    if not stuck:
        return findings
    hang = replace(made, status=Status.HANG, evidence=(*made.evidence, *(each.summary for each in stuck)))
    return [hang if each is made else each for each in findings if each not in stuck]


def _ordered(findings: list[Finding]) -> list[Finding]:
    """By time; a rank is blamed once for what stands still: what shows in one group after the other has one reason."""
    kept: list[Finding] = []
    blamed: set[int] = set()
    for finding in sorted(findings, key=lambda finding: (finding.status is Status.SLOW, finding.time or 0)):
        if finding.culprit_ranks and blamed.issuperset(finding.culprit_ranks):
            continue
        if finding.status is not Status.MISMATCH:
            blamed.update(finding.culprit_ranks)
        kept.append(finding)
    return kept


def _notes(evidence: Evidence, board: Board) -> tuple[str, ...]:
    notes = list(evidence.notes)
    for trace in evidence.traces:
        notes += [f"rank {trace.rank}: {note}" for note in trace.notes]
    world = evidence.job.world_size
    if world is not None:
        missing = [rank for rank in range(world) if rank not in board.traces]
        if missing:
            notes.append(f"nothing was recorded of {named(missing)}")
    return tuple(dict.fromkeys(notes))
