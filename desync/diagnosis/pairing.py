"""Sends and recvs that do not find each other: who left one out, and who let go of one that it had begun.

That a pair's counts differ does not say which side is wrong: one has done too little, or the other too much.  What can tell is
how many partners agree against one rank, and what each rank did in the turns before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from desync.diagnosis.advice import FORGOTTEN
from desync.diagnosis.board import Board, GroupBoard
from desync.diagnosis.frontier import Parting
from desync.diagnosis.roles import odd_count
from desync.diagnosis.ways import Astray, Step, Way, step_of, way_of
from desync.diagnosis.words import called, named, place
from desync.model import (
    AtDivergence,
    Cause,
    Certainty,
    Divergence,
    Finding,
    Kind,
    Operation,
    OperationState,
    Status,
    Trace,
)

MIN_TURNS = 2
"""So many turns before, all alike, are a habit."""
MIN_RANKS = 3
"""With fewer, one rank that changed its way is no more odd than one that did not."""
REACH = 4096
"""How many of a rank's newest operations are looked at."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The rank that is at fault for unpaired sends and recvs, with what shows it."""

    rank: int
    evidence: tuple[str, ...]
    cause: Cause = Cause.P2P_MISMATCH
    left_out: tuple[Step, ...] = ()
    """What it did in every turn before, and not in this one."""


def blame(board: Board, cycle: Sequence[Parting]) -> Blame | None:
    """Who is at fault for a circle that sends or recvs are part of; None where that cannot be told."""
    lacks = list(_lacks(board))
    ranks = {rank for parting in cycle for rank in parting.pending} | {lack.waiter for lack in lacks}
    ways = {rank: way_of(board.traces[rank]) for rank in ranks}
    astray = [(rank, way.astray) for rank, way in ways.items() if way.astray is not None]
    if len(astray) == 1 and all(way.known for way in ways.values()):
        return _left_its_way(*astray[0])
    if astray:
        return None
    return _short_of_several(lacks, cycle, ways) or _out_of_habit(board, cycle) or _out_of_step(board, lacks)


def _left_its_way(rank: int, astray: Astray) -> Blame:
    left_out = astray.left_out
    cause = Cause.P2P_MISMATCH
    if left_out and not any(step.is_p2p for step in left_out):
        cause = Cause.SKIPPED_COLLECTIVE
    words = [f"{named([rank])} left out {_told(step)}, which it made in every turn before" for step in left_out[:4]]
    other = f"{named([rank])} went from {_told(astray.before)} to {_told(astray.call)}, as never before"
    return Blame(rank, tuple(dict.fromkeys(words)) or (other,), cause, left_out)


# --- several partners against one


@dataclass(frozen=True, slots=True)
class Lack:
    """A pair in which ``waiter`` is in an operation that ``short`` has not matched."""

    waiter: int
    short: int
    operation: Operation
    done: int
    """How many ``short`` has done."""

    def __str__(self) -> str:
        """The counts, as evidence."""
        kind, other = ("send", "recv") if self.operation.call.op == "send" else ("recv", "send")
        way = "from" if other == "recv" else "to"
        return (
            f"rank {self.waiter} waits in {kind} #{self.operation.seq} at {place(self.operation.call.site)}; "
            f"rank {self.short} has made {self.done} of its {other}s {way} rank {self.waiter}"
        )


def _lacks(board: Board) -> Iterator[Lack]:
    for group in board.groups:
        if group.kind != "p2p" or len(group.lanes) != 2:
            continue
        short, ahead = sorted(group.lanes.values(), key=lambda lane: lane.last)
        operation = ahead.at(short.last + 1)
        if operation is not None and operation.pending:
            yield Lack(ahead.rank, short.rank, operation, short.last)


def _short_of_several(lacks: Sequence[Lack], cycle: Sequence[Parting], ways: Mapping[int, Way]) -> Blame | None:
    """The one rank that has done less than at least two others count on, directly or through each other.

    It has gone on to where it waits for them, and not many others with it.  A rank that is where it always is after what it
    did before may be held there by somebody else's fault.
    """
    waiters = {lack.waiter for lack in lacks}
    roots = {lack.short for lack in lacks} - waiters
    if len(roots) != 1:
        return None
    (root,) = roots
    meeting = next((here for here in cycle if here.board.kind == "collective" and root in here.pending), None)
    if meeting is None or ways[root].known:
        return None
    against = waiters.intersection(meeting.absent)
    if len(against) < MIN_RANKS - 1 or len(against) < len(meeting.came):
        return None
    return Blame(root, tuple(dict.fromkeys(str(lack) for lack in lacks)))


def _out_of_step(board: Board, lacks: Sequence[Lack]) -> Blame | None:
    """The one rank whose number of sends or recvs from a line is not that of all others."""
    waiters = {lack.waiter for lack in lacks}
    roots = [lack for lack in lacks if lack.short not in waiters]
    if len(roots) != 1:
        return None
    (lack,) = roots
    rank = odd_count(board, lack.operation, lack.short, waiters)
    if rank is None:
        return None
    less = "less" if rank == lack.short else "more"
    words = f"{named([rank])} made one {less} than all other ranks, which make these calls as often as each other"
    return Blame(rank, (words, str(lack)))


# --- one that did not do as before


@dataclass(frozen=True, slots=True)
class Turn:
    """What a rank usually does between two meetings, and what it did since the last one."""

    usual: tuple[Step, ...]
    now: tuple[Step, ...]
    over: bool
    """Whether it has come to the next meeting."""

    @property
    def changed(self) -> bool:
        """Whether it did something else than usual."""
        return self.now != (self.usual if self.over else self.usual[: len(self.now)])


def _out_of_habit(board: Board, cycle: Sequence[Parting]) -> Blame | None:
    """The one rank that did not do what it did in every turn before, while all others did."""
    meeting = next((parting for parting in cycle if parting.board.kind == "collective" and parting.pending), None)
    if meeting is None:
        return None
    operation = meeting.held_in(meeting.pending[0])
    ranks = meeting.group.ranks
    if operation is None or len(ranks) < MIN_RANKS or any(rank not in board.traces for rank in ranks):
        return None
    turns = {rank: _turn(board.traces[rank], step_of(operation.call, operation.group)) for rank in ranks}
    odd = [rank for rank, turn in turns.items() if turn is not None and turn.changed]
    if len(odd) != 1 or None in turns.values():
        return None
    turn = turns[odd[0]]
    return Blame(odd[0], _what_changed(odd[0], turn)) if turn is not None else None


def _what_changed(rank: int, turn: Turn) -> tuple[str, ...]:
    less = [step for step in turn.usual if step not in turn.now] if turn.over else []
    more = [step for step in turn.now if step not in turn.usual]
    lines = [f"{named([rank])} left out {_told(step)}, which it made in every turn before" for step in less[:4]]
    lines += [f"{named([rank])} made {_told(step)}, which it made in no turn before" for step in more[:4]]
    return tuple(lines) or (f"{named([rank])} did not do what it did in every turn before",)


def _told(step: Step) -> str:
    partner = "" if step.peer is None else f" {'to' if step.op == 'send' else 'from'} rank {step.peer}"
    return f"{step.op}{partner} at {place(step.site)}"


def _turn(trace: Trace, meeting: Step) -> Turn | None:
    """The turns of a rank between its calls of ``meeting``; None where it has no habit."""
    table = trace.operations
    turns: list[list[Step]] = [[]]
    for index in range(max(0, len(table) - REACH), len(table)):
        call = table.calls[table.call[index]]
        if call.kind is Kind.GROUP:
            continue
        step = step_of(call, table.groups[table.group[index]])
        if step == meeting:
            turns.append([])
        else:
            turns[-1].append(step)
    # What comes before the first meeting is no whole turn, or not one alone.
    past, now = turns[1:-1], turns[-1]
    over = not now
    if over and past:
        now = past.pop()
    if len(past) < MIN_TURNS or any(turn != past[-1] for turn in past[-MIN_TURNS:]):
        return None
    return Turn(tuple(past[-1]), tuple(now), over)


# --- let go of


def forgotten(board: Board) -> list[Finding]:
    """Sends and recvs of gloo whose handle was dropped, where the other side has waited for as long as the user grants."""
    return [finding for group in board.groups if group.kind == "p2p" for finding in _forgotten(board, group)]


def _forgotten(board: Board, group: GroupBoard) -> Iterable[Finding]:
    for rank, lane in group.lanes.items():
        if not len(lane.rows) or not is_gloo(lane.trace, group.group.name):
            continue
        waits = next((each for row in lane.rows if (each := lane.trace.operations.row(rank, row)).pending), None)
        other = next((each for each in group.lanes.values() if each.rank != rank), None)
        dropped = other.at(waits.seq) if other is not None and waits is not None else None
        if waits is not None and dropped is not None and _let_go(dropped) and has_waited_long(board, waits, dropped):
            yield _finding(group, waits, dropped)


def is_gloo(trace: Trace, name: str) -> bool:
    """Whether all of a group's backends are gloo: of others, no completion is ever seen."""
    group = trace.groups.get(name)
    backend = group.backend if group is not None else None
    return backend is not None and all(part.rpartition(":")[2] == "gloo" for part in backend.split(","))


def _let_go(operation: Operation) -> bool:
    return operation.returned is not None and operation.completed is None and not operation.call.completion_known


def has_waited_long(board: Board, *operations: Operation) -> bool:
    """Whether it has been for as long as the user grants that all of these were begun."""
    now = board.evidence.observed_at
    since = max(operation.entered or 0 for operation in operations)
    return now is not None and now - since >= board.evidence.hang_after_ns


def _finding(group: GroupBoard, waits: Operation, dropped: Operation) -> Finding:
    culprit, waiter = dropped.rank, waits.rank
    time = max(waits.entered or 0, dropped.entered or 0) or None
    return Finding(
        status=Status.HANG,
        cause=Cause.P2P_MISMATCH,
        certainty=Certainty.LIKELY,
        culprit_ranks=(culprit,),
        summary=(
            f"Rank {culprit} let go of the handle of its {called(dropped)} at {place(dropped.call.site)} without waiting for "
            f"it, and it was never done; rank {waiter} waits in {called(waits)} at {place(waits.call.site)}."
        ),
        advice=FORGOTTEN,
        evidence=(
            f"rank {culprit} went on without waiting for {called(dropped)}, and nobody holds its handle any more",
            f"rank {waiter} is still in {called(waits)}",
        ),
        time=time,
        divergence=Divergence(
            group=group.group,
            kind="p2p",
            seq=waits.seq,
            op=waits.call.op,
            by_rank={
                culprit: AtDivergence(OperationState.MISMATCHED, dropped),
                waiter: AtDivergence(OperationState.WAITING, waits),
            },
            time=time,
        ),
    )
