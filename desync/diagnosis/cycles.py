"""Partings that hold each other: nobody is absent of his own will, everybody waits for somebody who waits.

Two groups used in opposite order are the classic: each group alone shows a plain absence, with other culprits than the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from desync.diagnosis.advice import UNEVEN_PAIRS, advice
from desync.diagnosis.board import Board
from desync.diagnosis.frontier import Parting, divergence
from desync.diagnosis.history import History, Step
from desync.diagnosis.pairing import Blame, blame
from desync.diagnosis.ways import step_of
from desync.diagnosis.words import called, capital, named, place, verb
from desync.model import Cause, Certainty, Finding, Operation, Status

MAX_LEFT_OUT = 4
"""So many calls that a rank did not make are told."""

MAJORITY = 3
"""So many members a group has, of which most can be of one mind."""

Held = Callable[[int], Iterable[Parting]]
"""The partings that hold a rank up."""


def all_cycles(partings: Iterable[Parting], held: Held) -> list[tuple[Parting, ...]]:
    """The cycles to which the ways from the partings lead: from each to the first that holds one of its absent ranks up."""
    found: list[tuple[Parting, ...]] = []
    seen: set[int] = set()
    for start in partings:
        path: list[Parting] = []
        places: dict[int, int] = {}
        here: Parting | None = start
        while here is not None and id(here) not in seen and id(here) not in places:
            places[id(here)] = len(path)
            path.append(here)
            now = here
            here = next((there for rank in now.absent for there in held(rank) if there is not now), None)
        if here is not None and id(here) in places:
            found.append(tuple(path[places[id(here)] :]))
        seen.update(places)
    return found


def finding(cycle: tuple[Parting, ...], history: History, board: Board) -> Finding:
    """The cycle as a finding, with the calls that close it."""
    links = [_link(parting, cycle) for parting in cycle]
    strayed = _strayed(cycle, history)
    cause = _cause(cycle, strayed, history)
    culprits = strayed or _minority(cycle)
    lines = (*_ways(strayed, history), *(_line(operation, waits_for) for operation, waits_for in links))
    blocks = all(operation.call.is_async is False for operation, _ in links)
    advised, lead, shown = advice(cause), "", _shown(cycle, culprits)
    if cause is Cause.P2P_MISMATCH and not any(operation.call.op == "send" for operation, _ in links):
        advised = UNEVEN_PAIRS  # who waits in nothing but recvs has sent too little, or receives too much
    if cause is Cause.P2P_MISMATCH and (found := blame(board, cycle)) is not None:
        culprits, lines, cause = (found.rank,), (*found.evidence, *lines), found.cause
        shown = _where_left_out(cycle, found) or _shown(cycle, culprits)
        advised, lead = UNEVEN_PAIRS if cause is Cause.P2P_MISMATCH else advice(cause), f"{capital(found.evidence[0])}. "
    circle = "; ".join(
        f"{named(_waiting(parting))} {verb(_waiting(parting), 'waits', 'wait')} in {called(operation)} of group "
        f"{operation.group} for {named(waits_for)}"
        for parting, (operation, waits_for) in zip(cycle, links, strict=True)
    )
    return Finding(
        status=Status.HANG,
        cause=cause,
        # That nothing opens the circle is proven; who should have gone another way is read off what they did before.
        certainty=Certainty.PROVEN if blocks and not culprits else Certainty.LIKELY,
        culprit_ranks=culprits,
        summary=f"{lead}{capital(circle)}: a circle that nothing can open.",
        advice=advised,
        evidence=lines,
        time=max((parting.time or 0 for parting in cycle), default=None),
        divergence=divergence(shown, culprits=culprits),
    )


def _waiting(parting: Parting) -> tuple[int, ...]:
    """Who is in a link's operation, or was until an error ended it."""
    return parting.pending or parting.failed or parting.came


def _shown(cycle: tuple[Parting, ...], culprits: tuple[int, ...]) -> Parting:
    """The parting that the report shows: one in which the culprit can be seen at a line of its own, if there is one."""
    return next((parting for parting in cycle if set(culprits) & set(parting.pending)), cycle[0])


def _where_left_out(cycle: tuple[Parting, ...], blamed: Blame) -> Parting | None:
    """The parting at a collective that the rank left out: there the others are, and it is not."""
    for parting in cycle:
        if parting.board.kind == "collective" and blamed.rank in parting.absent:
            operation, _ = _link(parting, cycle)
            if step_of(operation.call, operation.group) in blamed.left_out:
                return parting
    return None


def _link(parting: Parting, cycle: tuple[Parting, ...]) -> tuple[Operation, tuple[int, ...]]:
    """The operation in which this link's ranks are, and those of the others in the cycle for which they wait."""
    others = {rank for other in cycle if other is not parting for rank in _waiting(other)}
    rank = _waiting(parting)[0]
    operation = parting.held_in(rank)
    assert operation is not None  # noqa: S101 - a rank is pending in an operation
    return operation, tuple(rank for rank in parting.absent if rank in others) or parting.absent


def _line(operation: Operation, waits_for: tuple[int, ...]) -> str:
    return (
        f"rank {operation.rank} is in {called(operation)} of {operation.group} at {place(operation.call.site)} "
        f"and waits for {named(waits_for)}"
    )


def _ways(strayed: Iterable[int], history: History) -> Iterator[str]:
    """What a rank left out that it had done every time before; or has not done yet, for it is held."""
    for rank in strayed:
        for site, group in history.left_out(rank)[:MAX_LEFT_OUT]:
            yield (
                f"rank {rank} did not first make the call of group {group} at {place(site)}, as it always had before: "
                "it left it out, or would make it afterwards"
            )


def _cause(cycle: tuple[Parting, ...], strayed: tuple[int, ...], history: History) -> Cause:
    others = {rank for parting in cycle for rank in parting.pending if rank not in strayed}
    newest = history.newest(strayed[0]) if strayed else None
    if newest is not None and others.isdisjoint(history.known_by(newest)):
        return Cause.RANK_ONLY_COLLECTIVE
    kinds = {parting.board.kind for parting in cycle}
    if "p2p" in kinds:
        return Cause.P2P_MISMATCH
    if strayed and _is_in_backward(cycle, strayed[0]) and _waited_for(cycle, strayed[0]) & set(history.left_out(strayed[0])):
        return Cause.SKIPPED_COLLECTIVE
    return Cause.GROUP_CREATION if "group_creation" in kinds else Cause.GROUP_ORDER_CYCLE


def _is_in_backward(cycle: tuple[Parting, ...], rank: int) -> bool:
    """Whether a rank is in a bucket of DDP: a backward does not change places with a call of the program."""
    held = (parting.held_in(rank) for parting in cycle if rank in parting.pending)
    return any(operation is not None and operation.call.bucket is not None for operation in held)


def _waited_for(cycle: tuple[Parting, ...], rank: int) -> set[Step]:
    """The steps in which the others are and the rank is not."""
    held = (parting.held_in(_waiting(parting)[0]) for parting in cycle if rank in parting.absent)
    return {(each.call.site, each.group) for each in held if each is not None and each.call.site is not None}


def _strayed(cycle: tuple[Parting, ...], history: History) -> tuple[int, ...]:
    """The rank that came here on another way than it and the others do; empty where that does not tell one apart."""
    ranks = _ranks(cycle)
    # The history is of collectives: of who is held in a send or recv, the newest one is over, and the others made it too.
    p2p = {rank for parting in cycle if parting.board.kind == "p2p" for rank in parting.pending}
    strayed = tuple(
        rank for rank in ranks if rank not in p2p and history.strayed(rank) and not _left_the_loop(rank, ranks, history)
    )
    if len(strayed) != 1 or len(ranks) < 2 or _is_one_against_one(cycle, strayed[0], history):
        return ()
    return strayed


def _is_one_against_one(cycle: tuple[Parting, ...], rank: int, history: History) -> bool:
    """Whether the rank's call is new to all, and one peer alone should make it too: either may be the one at fault."""
    newest = history.newest(rank)
    here = next((parting for parting in cycle if rank in parting.pending), None)
    return newest is not None and here is not None and len(here.group.ranks) < MAJORITY and history.known_by(newest) <= {rank}


def _ranks(cycle: tuple[Parting, ...]) -> list[int]:
    return sorted({rank for parting in cycle for rank in parting.pending})


def _minority(cycle: tuple[Parting, ...]) -> tuple[int, ...]:
    """The ranks that are in other groups than most, where all are in groups of the same members; empty without a majority."""
    ranks = _ranks(cycle)
    if any(parting.board.kind != "collective" or sorted(parting.group.ranks) != ranks for parting in cycle):
        return ()
    most = max((parting.pending for parting in cycle), key=len)
    return tuple(rank for rank in ranks if rank not in most) if 2 * len(most) > len(ranks) else ()


def _left_the_loop(rank: int, ranks: list[int], history: History) -> bool:
    """Whether a rank is, for the first time, where others are as well: it may only have come to the end of its loop."""
    newest = history.newest(rank)
    if newest is None or history.times(rank, newest) > 1:
        return False
    return not history.known_by(newest).isdisjoint(other for other in ranks if other != rank)
