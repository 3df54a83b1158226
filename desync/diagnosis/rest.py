"""What is left when the partings are explained: ends that nobody waited for, and jobs in which no rank is at fault."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from desync.diagnosis import races, standing, teardown
from desync.diagnosis.advice import advice
from desync.diagnosis.board import Board, GroupBoard
from desync.diagnosis.endings import INTERRUPTED, Ending, Manner
from desync.diagnosis.ends import explain_end
from desync.diagnosis.frontier import Parting, divergence, together
from desync.diagnosis.suspect import Explanation
from desync.diagnosis.words import called, closed, counted, named, of_several, place, verb
from desync.model import Cause, Certainty, Evidence, Finding, Operation, Status

MAX_LIKEWISE = 8
"""So many further waits of one kind are told one by one."""


def other_ends(board: Board, ends: Mapping[int, Ending], explained: set[int]) -> list[Finding]:
    """Ranks that raised, were killed or left with a status although nobody was seen waiting for them."""
    by_reason: dict[tuple[Cause, str], list[tuple[Ending, Explanation]]] = {}
    for rank, ending in ends.items():
        abort = teardown.aborted(ending) or races.aborted(board, ending)
        explanation = abort or explain_end(ending) or _left_with_status(ending)
        if explanation is not None and rank not in explained:
            by_reason.setdefault((explanation.cause, explanation.what), []).append((ending, explanation))
    return [_ended(same) for same in by_reason.values()]


def _left_with_status(ending: Ending) -> Explanation | None:
    # Whoever was about to end and was then killed was cleared away by its launcher, most often because of another rank.
    if ending.manner is not Manner.EXITED or ending.code in (0, None) or ending.signal is not None or ending.victim:
        return None
    where = f" at {place(ending.site)}" if ending.site is not None else ""
    return Explanation(Cause.EXITED_EARLY, ending.certainty, f"exited with status {ending.code}{where}", time=ending.time)


def _ended(same: list[tuple[Ending, Explanation]]) -> Finding:
    explanation = same[0][1]
    culprits = tuple(sorted(ending.rank for ending, _ in same))
    who = named(culprits)
    what = of_several(explanation.what) if len(culprits) > 1 else explanation.what
    return Finding(
        status=Status.CRASH,
        cause=explanation.cause,
        certainty=explanation.certainty,
        culprit_ranks=culprits if explanation.blames else (),
        summary=closed(f"{who[0].upper()}{who[1:]} {what}"),
        advice=explanation.advice or advice(explanation.cause),
        evidence=tuple(dict.fromkeys(line for _, each in same for line in each.evidence)),
        time=min((ending.time for ending, _ in same if ending.time is not None), default=None),
    )


def only_victims(board: Board, ends: Mapping[int, Ending]) -> list[Finding]:
    """Errors of communication and nothing that began them."""
    victims = [end for end in ends.values() if end.victim]
    return [races.behind(_victims(victims), board, tuple(end.rank for end in victims))] if victims else []


def _victims(victims: list[Ending]) -> Finding:
    ranks = [ending.rank for ending in victims]
    errors = [f"{named([end.rank])}: {end.error.type}" for end in victims if end.error is not None]
    interrupted = all(end.error is not None and end.error.type == INTERRUPTED for end in victims)
    why = "failed because a peer or the network did; what began it"
    if all(end.signal == signal.SIGTERM for end in victims):
        why = f"{verb(ranks, 'was', 'were')} ended with SIGTERM; who sent it"
    if interrupted:
        why = f"{verb(ranks, 'was', 'were')} interrupted (Ctrl-C); what held the job up until then"
    return Finding(
        status=Status.UNKNOWN,
        cause=Cause.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=f"{named(ranks).capitalize()} {why} was not seen.",
        advice=advice(Cause.UNKNOWN),
        evidence=tuple(errors),
        time=min((end.time for end in victims if end.time is not None), default=None),
    )


def nobody_is_wrong(board: Board, ends: Mapping[int, Ending], partings: tuple[Parting, ...]) -> list[Finding]:
    """All ranks agree and still do not get on: missing at the rendezvous, or in one operation that does not finish."""
    waiting = [here for group in board.groups if (here := together(group)) is not None]
    stood = [(here, operation) for here in waiting if (operation := _stands(board, here, ends)) is not None]
    found = [finding for here, operation in stood if (finding := _stalled(board, here, operation)) is not None]
    # Whoever is in no operation may still come, and release the others one after the other.
    held = all(_is_held(board, rank) or rank in ends for rank in board.traces)
    if not found and held and any(_lost(here) for here, _ in stood):
        found.append(_unrecorded(stood))
    return found or [finding for parting in partings if (finding := _rendezvous(board, parting)) is not None]


def _stands(board: Board, here: Parting, ends: Mapping[int, Ending]) -> Operation | None:
    """The operation that has not finished for too long, if all who came to it live."""
    waited = _waited(board.evidence, here)
    if waited is None or waited < board.evidence.hang_after_ns or any(rank in ends for rank in here.came):
        return None
    return here.operation(here.pending[0])


def _lost(here: Parting) -> tuple[int, ...]:
    """Ranks of the group of which the records no longer tell whether they ever came."""
    return tuple(rank for rank in here.group.ranks if rank not in here.came)


def _stalled(board: Board, here: Parting, operation: Operation) -> Finding | None:
    if stopped := standing.stopped_inside(board.evidence, here, operation):
        return stopped
    if _lost(here):
        return None
    waited = _waited(board.evidence, here) or 0
    return Finding(
        status=Status.HANG,
        cause=Cause.COMMUNICATION_STALLED,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=(
            f"All of {named(here.came)} are in {called(operation)} at {place(operation.call.site)}, "
            f"and it has not finished for {waited / 1e9:.0f} s."
        ),
        advice=advice(Cause.COMMUNICATION_STALLED),
        evidence=standing.in_disk_sleep(board.evidence, here.came),
        time=here.time,
        divergence=divergence(here),
    )


def _unrecorded(stood: Sequence[tuple[Parting, Operation]]) -> Finding:
    """Ranks wait for others of which nothing is recorded any more; many waits of that kind are one fault, or none."""
    unseen = sorted(((here, operation) for here, operation in stood if _lost(here)), key=lambda each: each[0].time or 0)
    (first, operation), others = unseen[0], unseen[1:]
    lost = f"what {named(_lost(first))} did in group {first.group.name} is no longer in the records"
    return Finding(
        status=Status.HANG,
        cause=Cause.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=f"{_waits(first, operation)}; {lost}.",
        advice=advice(Cause.UNKNOWN),
        evidence=_likewise(others),
        time=first.time,
        divergence=divergence(first),
    )


def _waits(here: Parting, operation: Operation) -> str:
    who = named(here.pending).capitalize()
    return f"{who} {verb(here.pending, 'waits', 'wait')} in {called(operation)} at {place(operation.call.site)}"


def _likewise(others: Sequence[tuple[Parting, Operation]]) -> tuple[str, ...]:
    lines = [f"{_waits(here, operation)} for {named(_lost(here))} likewise" for here, operation in others[:MAX_LIKEWISE]]
    if len(others) > MAX_LIKEWISE:
        lines.append(f"and {counted(len(others) - MAX_LIKEWISE, 'further wait')} of that kind")
    return tuple(lines)


def _is_held(board: Board, rank: int) -> bool:
    """Whether the newest that is known of a rank is an operation that is not over."""
    trace = board.traces[rank]
    return len(trace.operations) > 0 and trace.operations.row(rank, -1).pending


def _rendezvous(board: Board, parting: Parting) -> Finding | None:
    missing = parting.board.unseen
    waited = _waited(board.evidence, parting)
    if parting.board.kind != "group_creation" or not missing or not parting.pending:
        return None
    if waited is None or waited < board.evidence.hang_after_ns:
        return None
    operation = parting.operation(parting.pending[0])
    if operation is None or operation.call.op != "init_process_group":
        return None
    return Finding(
        status=Status.HANG,
        cause=Cause.RENDEZVOUS,
        certainty=Certainty.LIKELY,
        culprit_ranks=missing,
        summary=(
            f"{named(missing).capitalize()} never reached init_process_group; {named(parting.pending)} "
            f"wait there at {place(operation.call.site)}."
        ),
        advice=advice(Cause.RENDEZVOUS),
        time=parting.time,
        divergence=divergence(parting, culprits=missing),
    )


def _waited(evidence: Evidence, parting: Parting) -> int | None:
    if evidence.observed_at is None or parting.time is None:
        return None
    return evidence.observed_at - parting.time


def status_without_finding(board: Board, ends: Mapping[int, Ending]) -> Status:
    """Healthy unless something shows that it was not, or too little was seen."""
    evidence = board.evidence
    if not evidence.traces:
        return Status.UNKNOWN
    if evidence.ended and evidence.job.exit_code not in (0, None):
        return Status.UNKNOWN
    if not evidence.ended and any(_waits_for_unseen(group, evidence) for group in board.groups):
        return Status.UNKNOWN
    return Status.UNKNOWN if any(ending.victim for ending in ends.values()) else Status.HEALTHY


def _waits_for_unseen(group: GroupBoard, evidence: Evidence) -> bool:
    """Whether ranks have waited too long in a group of which other ranks left no record."""
    if not group.unseen or evidence.observed_at is None:
        return False
    newest = [operation for lane in group.lanes.values() if (operation := lane.at(lane.last)) is not None]
    since = [operation.entered for operation in newest if operation.pending and operation.entered is not None]
    return any(evidence.observed_at - entered >= evidence.hang_after_ns for entered in since)
