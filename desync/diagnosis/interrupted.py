"""What is said of a job that was told to end before anybody could know whether it hung."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from desync.diagnosis.advice import advice
from desync.diagnosis.board import Board
from desync.diagnosis.endings import INTERRUPTED
from desync.diagnosis.frontier import Parting, divergence, together
from desync.diagnosis.words import called, capital, named, place, verb
from desync.model import CallSite, Cause, Certainty, Evidence, Finding, Operation, Status

WORTH_SAYING_NS = 2_000_000_000
"""Waits of healthy jobs are shorter as a rule; what was longer may be why somebody ended the job."""


def findings(board: Board, partings: Iterable[Parting], awaited: Collection[int], later: Evidence) -> list[Finding]:
    """The longest wait there was when the job was told to end; nobody is blamed, for who is late may still come.

    ``board`` is as it stood then; ``later`` has what came afterwards, such as where the interruption met a rank.
    """
    told = board.evidence.job.told_to_end
    if told is None:
        return []
    places = [here for here in partings if not here.mismatch and not set(awaited).isdisjoint(here.absent)]
    places += [here for group in board.groups if (here := together(group)) is not None] if not places else []
    waits = [(began, here, operation) for here in places for began, operation in _longest(here)]
    began, here, operation = min(waits, key=lambda wait: wait[0], default=(told, None, None))
    if here is None or operation is None or told - began < WORTH_SAYING_NS:
        return []
    finding = _finding(board, here, operation, (told - began) / 1e9)
    return [replace(finding, evidence=tuple(filter(None, (_met(later, rank) for rank in here.absent[:16]))))]


def _longest(here: Parting) -> list[tuple[int, Operation]]:
    operations = [operation for rank in here.pending if (operation := here.held_in(rank)) is not None]
    return sorted(((each.entered, each) for each in operations if each.entered is not None), key=lambda pair: pair[0])[:1]


def _finding(board: Board, here: Parting, operation: Operation, seconds: float) -> Finding:
    waiting, absent = here.pending, here.absent
    had = f"had been in {called(operation)} at {place(operation.call.site)} for {seconds:.1f} s when the job was told to end"
    whom = f", and {named(absent)} {verb(absent, 'was', 'were')} not there yet" if absent else ""
    short = seconds * 1e9 < board.evidence.hang_after_ns
    why = "too early to say that it hung" if short else "what held it up was not seen"
    return Finding(
        status=Status.UNKNOWN,
        cause=Cause.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=f"{capital(named(waiting))} {had}{whom}: {why}.",
        advice=_advice(board, absent, short),
        time=here.time,
        divergence=divergence(here),
    )


def _met(later: Evidence, rank: int) -> str:
    """Where a rank was when it was interrupted, if its traceback tells."""
    trace = later.trace(rank)
    errors = [mark.failure for mark in trace.marks if mark.failure is not None] if trace is not None else []
    frames = errors[-1].frames if errors and errors[-1].type == INTERRUPTED else ()
    return f"{named([rank])} was interrupted at {place(CallSite(frames))}" if frames else ""


def _advice(board: Board, absent: tuple[int, ...], short: bool) -> str:
    if not short:
        return f"Look at what {named(absent)} did instead (its stack, its last operation)." if absent else advice(Cause.UNKNOWN)
    patience = f"let it stand for longer than {board.evidence.hang_after_ns / 1e9:g} s (--hang-after), and desync says why"
    if not absent:
        return f"If it hung, {patience}."
    return f"Look at what {named(absent)} did instead (its stack, its last operation). If it hung, {patience}."
