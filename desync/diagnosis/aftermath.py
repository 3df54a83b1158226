"""Findings for a job that was seen only once, when nothing moved any more: from its heads and their roots.

Nobody can be watched here: whether an absent rank still works is not known.  What is left is which rank everybody waits for, at
which operation, and what it did differently from its own past.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from desync.diagnosis.advice import advice
from desync.diagnosis.board import Board, GroupBoard
from desync.diagnosis.habits import Break, Change, expected_next, newest_break, odd_one
from desync.diagnosis.heads import Place, Root, Standstill, divergence_at, stand
from desync.diagnosis.words import called, named, place, verb
from desync.model import Cause, Certainty, ClaimKind, Divergence, Finding, Kind, Operation, Status

_GPU_ADVICE = (
    "Look at the GPUs of these ranks: dmesg and nvidia-smi -q for Xid errors, ECC and lost links; the host went on calling "
    "while nothing finished on the device."
)
_NO_RECORD_ADVICE = (
    "Find out what became of these ranks: their exit status, their own log, dmesg of their machine; a missing dump alone does "
    "not say that they died."
)


def findings(board: Board) -> list[Finding]:
    """What holds the job up, as far as one look tells; empty if nobody waits."""
    found = stand(board)
    if not found.heads:
        return []
    roots = [*_idle(found), *_lagging(found)]
    return roots or _circle(found) or _unseen(found) or _together(found) or _elsewhere(found)


def _idle(found: Standstill) -> list[Finding]:
    by_place = found.roots.get(Root.IDLE)
    if not by_place:
        return []
    culprits = tuple(sorted(set().union(*by_place.values())))
    where = _missed(found, by_place, culprits[0])
    missed = divergence_at(found, where)
    expected = expected_next(found.board.traces[culprits[0]])
    if expected is not None and missed.kind == "p2p" and _works_on(found.group_board(where), expected):
        missed = replace(missed, op=expected.call.op)
    who = named(culprits)
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.STALLED_RANK,
            certainty=Certainty.LIKELY,
            culprit_ranks=culprits,
            summary=(
                f"{_capital(who)} did not come and {verb(culprits, 'has', 'have')} nothing under way; {_waiting(found, where)}."
            ),
            advice=_ABSENT_ADVICE,
            evidence=tuple(_last_of(found, rank) for rank in culprits[:16]),
            time=_time(found, where),
            divergence=missed,
        )
    ]


_ABSENT_ADVICE = (
    "See what these ranks did instead: a loader, a lock, a file, a branch that the others do not take, or the end of their "
    "data; take their stacks (py-spy dump --pid PID) while the job still hangs."
)


def _last_of(found: Standstill, rank: int) -> str:
    trace = found.board.traces[rank]
    if not len(trace.operations):
        return f"{named([rank])}: no operation was recorded"
    last = trace.operations.row(rank, -1)
    what = "an operation" if last.call.op == "unrecorded" else last.call.op
    return f"{named([rank])}: its newest is {what} #{last.seq} of group {last.group}, which is over"


def _lagging(found: Standstill) -> list[Finding]:
    by_place = found.roots.get(Root.LAGGING)
    if not by_place:
        return []
    culprits = set().union(*by_place.values())
    where, lagging = _common_place(found, culprits) or (_first(found, by_place), tuple(sorted(culprits)))
    ahead = [rank for rank in found.group_board(where).lanes if rank not in culprits]
    who = named(culprits)
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.STALLED_RANK,
            certainty=Certainty.LIKELY,
            culprit_ranks=tuple(sorted(culprits)),
            summary=(
                f"{_capital(who)} {verb(culprits, 'has', 'have')} called further but finished nothing since "
                f"{_name(found, where)}, which {named(ahead)} {verb(ahead, 'has', 'have')} finished: "
                f"{verb(culprits, 'its device stands', 'their devices stand')}."
            ),
            advice=_GPU_ADVICE,
            evidence=tuple(_head_of(found, rank) for rank in lagging[:16]),
            time=_time(found, where),
            divergence=divergence_at(found, where),
        )
    ]


def _head_of(found: Standstill, rank: int) -> str:
    head = found.heads[rank].operation
    return f"{named([rank])}: oldest unfinished is {called(head)} of group {head.group}"


def _common_place(found: Standstill, culprits: set[int]) -> tuple[Place, tuple[int, ...]] | None:
    """The group in which most of the lagging ranks lag, at the operation where they began to."""
    best: tuple[tuple[int, int], Place, tuple[int, ...]] | None = None
    for index, group in enumerate(found.board.groups):
        members = [rank for rank in culprits if rank in group.lanes and group.kind == "collective"]
        for rank in members:
            operation = _oldest_unfinished(group.lanes[rank].rows, found, rank)
            if operation is None:
                continue
            ahead = any(
                lane.first > operation.seq and len(lane.rows) for other, lane in group.lanes.items() if other not in culprits
            )
            score = (len(members), -(operation.entered or 0))
            if ahead and (best is None or score > best[0]):
                best = (score, (index, operation.seq), tuple(sorted(members)))
    return (best[1], best[2]) if best else None


def _oldest_unfinished(rows: Iterable[int], found: Standstill, rank: int) -> Operation | None:
    table = found.board.traces[rank].operations
    row = next((row for row in rows if table.completed[row] <= 0), None)
    return table.row(rank, row) if row is not None else None


def _unseen(found: Standstill) -> list[Finding]:
    by_place = found.roots.get(Root.UNSEEN)
    if not by_place:
        return []
    culprits = tuple(sorted(set().union(*by_place.values())))
    where = _missed(found, by_place)
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.UNKNOWN,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=culprits,
            summary=f"{_capital(named(culprits))} left no record; {_waiting(found, where)}, and all others wait for these.",
            advice=_NO_RECORD_ADVICE,
            time=_time(found, where),
            divergence=divergence_at(found, where),
        )
    ]


def _together(found: Standstill) -> list[Finding]:
    by_place = found.roots.get(Root.TOGETHER)
    if not by_place:
        return []
    where = _first(found, by_place)
    ranks = by_place[where]
    operation = found.heads[min(ranks)].operation
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.COMMUNICATION_STALLED,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=(),
            summary=f"All of {named(ranks)} are in {called(operation)} at {place(operation.call.site)}; it does not finish.",
            advice=advice(Cause.COMMUNICATION_STALLED),
            time=_time(found, where),
            divergence=divergence_at(found, where),
        )
    ]


def _elsewhere(found: Standstill) -> list[Finding]:
    """Ranks wait, but for whom is not known; if all but one wait, it is that one, possibly."""
    world = found.board.evidence.job.world_size or 0
    silent = tuple(rank for rank in range(min(world, MAX_NAMED)) if rank not in found.heads)
    culprits = silent if len(silent) == 1 else ()
    first = min(found.heads.values(), key=lambda head: (head.operation.entered or 0, head.operation.rank))
    waiting = tuple(found.heads)
    operation = first.operation
    whom = f"for {named(culprits)}, as far as can be told" if culprits else "and for whom is not known"
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.UNKNOWN,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=culprits,
            summary=f"{_capital(named(waiting))} {verb(waiting, 'waits', 'wait')}, first in {called(operation)}, {whom}.",
            advice=advice(Cause.UNKNOWN),
            evidence=tuple(_head_of(found, rank) for rank in waiting[:16]),
            time=operation.entered,
        )
    ]


MAX_NAMED = 65536


def _circle(found: Standstill) -> list[Finding]:
    ranks = found.circle()
    if not ranks:
        return []
    order = _opposite_order(found, ranks)
    if order is not None:
        return [order]
    broken = odd_one({rank: newest_break(found.board.traces[rank]) for rank in ranks})
    return [_broken(found, ranks, broken) if broken is not None else _undecided(found, ranks)]


def _opposite_order(found: Standstill, ranks: tuple[int, ...]) -> Finding | None:
    """Two operations that have been entered by both sides, in opposite order."""
    heads = list(dict.fromkeys(found.heads[rank].place for rank in ranks))
    for one in heads:
        for other in heads:
            if one < other and (sides := _sides(found, one, other)) is not None:
                return _order_finding(found, ranks, sides, (one, other))
    return None


def _sides(found: Standstill, one: Place, other: Place) -> tuple[list[int], list[int]] | None:
    """The ranks that entered ``one`` before ``other``, and those that did the reverse; None unless there are both."""
    first: list[int] = []
    second: list[int] = []
    for rank in found.group_board(one).lanes:
        rows = (_row(found, rank, one), _row(found, rank, other))
        if rows[0] is not None and rows[1] is not None:
            (first if rows[0] < rows[1] else second).append(rank)
    return (first, second) if first and second else None


def _row(found: Standstill, rank: int, where: Place) -> int | None:
    lane = found.group_board(where).lanes.get(rank)
    operation = lane.at(where[1]) if lane is not None else None
    return operation.index if operation is not None else None


def _order_finding(
    found: Standstill, ranks: tuple[int, ...], sides: tuple[list[int], list[int]], places: tuple[Place, Place]
) -> Finding:
    first, second = sides
    culprits = () if len(first) == len(second) else tuple(first if len(first) < len(second) else second)
    if not culprits and (broken := odd_one({rank: newest_break(found.board.traces[rank]) for rank in ranks})):
        culprits = (broken.rank,)
    names = [_name(found, where) for where in places]
    same = found.group_board(places[0]).group.name == found.group_board(places[1]).group.name
    cause = Cause.ORDER_MISMATCH if same else Cause.GROUP_ORDER_CYCLE
    return Finding(
        status=Status.HANG,
        cause=cause,
        certainty=Certainty.LIKELY,
        culprit_ranks=culprits,
        summary=(
            f"{_capital(named(first))} called {names[0]} before {names[1]}, {named(second)} the other way round: "
            "each side waits for the other."
        ),
        advice=advice(cause),
        evidence=tuple(_head_of(found, rank) for rank in ranks),
        time=_time(found, places[0]),
        divergence=divergence_at(found, places[0]),
    )


def _broken(found: Standstill, ranks: tuple[int, ...], broken: Break) -> Finding:
    operation = broken.operation
    cause = _CAUSES[broken.change]
    # What is left out is named by what it was when it was last done, with the number that it would have had.
    name = f"{operation.call.op} #{broken.seq} of group {operation.group}"
    did = _DID[broken.change]
    return Finding(
        status=Status.HANG,
        cause=cause,
        certainty=Certainty.LIKELY,
        culprit_ranks=(broken.rank,),
        summary=(
            f"{_capital(named([broken.rank]))} {did} {name} at {place(operation.call.site)}, against its own habit; since then "
            f"{named(ranks)} wait for each other."
        ),
        advice=advice(Cause.P2P_MISMATCH if operation.call.kind is Kind.P2P else cause),
        evidence=(
            f"{named([broken.rank])}: its newest {broken.length} operations repeat its past, the one before them does not",
            *(_head_of(found, rank) for rank in ranks[:8]),
        ),
        time=_time(found, found.heads[broken.rank].place),
        divergence=_where_broken(found, broken),
    )


_DID = {
    Change.LEFT_OUT: "left out",
    Change.PUT_IN: "made",
    Change.REPLACED: "made",
    Change.OTHER_ARGUMENTS: "changed",
    Change.SWAPPED: "swapped",
}
_CAUSES = {
    Change.LEFT_OUT: Cause.SKIPPED_COLLECTIVE,
    Change.PUT_IN: Cause.RANK_ONLY_COLLECTIVE,
    Change.OTHER_ARGUMENTS: Cause.ARGUMENT_MISMATCH,
    Change.REPLACED: Cause.RANK_ONLY_COLLECTIVE,
    Change.SWAPPED: Cause.ORDER_MISMATCH,
}


def _where_broken(found: Standstill, broken: Break) -> Divergence:
    for index, group in enumerate(found.board.groups):
        if broken.rank in group.lanes and _works_on(group, broken.operation):
            return replace(divergence_at(found, (index, broken.seq)), op=broken.operation.call.op)
    return divergence_at(found, found.heads[broken.rank].place)


def _undecided(found: Standstill, ranks: tuple[int, ...]) -> Finding:
    p2p = any(found.group_board(found.heads[rank].place).kind == "p2p" for rank in ranks)
    cause = Cause.P2P_MISMATCH if p2p else Cause.UNKNOWN
    fewer = [
        claim for claim in found.board.evidence.claims if claim.kind is ClaimKind.BEHIND and set(claim.ranks) <= set(ranks)
    ]
    culprits = fewer[0].ranks if p2p and len(fewer) == 1 else ()
    said = (f"{named(culprits)} {fewer[0].text}",) if culprits else ()
    return Finding(
        status=Status.HANG,
        cause=cause,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=culprits,
        summary=f"{_capital(named(ranks))} wait for each other in a circle; what led to it is no longer in the records.",
        advice=advice(cause),
        evidence=(*said, *(_head_of(found, rank) for rank in ranks[:8])),
        time=_time(found, found.heads[ranks[0]].place),
        divergence=divergence_at(found, found.heads[ranks[0]].place),
    )


def _first(found: Standstill, places: Iterable[Place]) -> Place:
    """The operation that was entered first."""
    return min(places, key=lambda where: (_time(found, where) or 0, where))


def _missed(found: Standstill, places: Iterable[Place], absent: int | None = None) -> Place:
    """Of the operations that wait for absent ranks the one that they would have come to first.

    It is the one that the rank's habits expect next; where these do not tell, the collective that most ranks are in, unless
    these have been past another one of them in their own groups.
    """
    expected = expected_next(found.board.traces[absent]) if absent is not None else None

    def order(where: Place) -> tuple[bool, int, int, Place]:
        group = found.group_board(where)
        return group.kind != "collective", -len(found.at(where)), _time(found, where) or 0, where

    ordered = sorted(places, key=order)
    for where in ordered:
        if expected is not None and _works_on(found.group_board(where), expected):
            return where
    best = ordered[0]
    for where in ordered[1:]:
        if _precedes(found, where, best):
            best = where
    return best


def _precedes(found: Standstill, one: Place, other: Place) -> bool:
    """Whether ranks that wait in ``other`` have before been in what corresponds to ``one`` in a group of their own."""
    group = found.group_board(one)
    description, seq = group.group.description, one[1]
    if group.kind != "collective" or description is None:
        return False
    for rank in found.at(other)[:4]:
        trace, head = found.board.traces[rank], found.heads[rank].operation
        own = {name for name, each in trace.groups.items() if each.description == description}
        rows = (trace.operations.row(rank, row) for row in range(head.index))
        if any(row.seq == seq and row.group in own and row.call.kind is Kind.COLLECTIVE for row in rows):
            return True
    return False


def _works_on(group: GroupBoard, operation: Operation) -> bool:
    if group.group.name != operation.group:
        return False
    if operation.call.kind is Kind.COLLECTIVE:
        return group.kind == "collective"
    call = operation.call
    pair = (operation.rank, call.peer) if call.op == "send" else (call.peer, operation.rank)
    return group.kind == "p2p" and group.group.ranks == pair


def _time(found: Standstill, where: Place) -> int | None:
    times = [time for rank in found.at(where) if (time := found.heads[rank].operation.entered)]
    return min(times, default=None)


def _name(found: Standstill, where: Place) -> str:
    group = found.group_board(where)
    operation = next((each for lane in group.lanes.values() if (each := lane.at(where[1])) is not None), None)
    what = operation.call.op if operation is not None else "operation"
    return f"{what} #{where[1]} of group {group.group.description or group.group.name}"


def _waiting(found: Standstill, where: Place) -> str:
    ranks = found.at(where)
    operation = found.heads[ranks[0]].operation
    did = verb(ranks, "waits", "wait")
    return f"{named(ranks)} {did} in {called(operation)} at {place(operation.call.site)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
