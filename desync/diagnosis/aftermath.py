"""Findings for a job that was seen only once, when nothing moved any more: from its heads and their roots.

Nobody can be watched here: whether an absent rank still works is not known.  What is left is which rank everybody waits for, at
which operation, and what it did differently from its own past.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from desync.diagnosis import standoff
from desync.diagnosis.advice import advice
from desync.diagnosis.board import Board
from desync.diagnosis.habits import expected_next
from desync.diagnosis.heads import Place, Root, Standstill, divergence_at, first_of, head_of, name_of, stand, time_at
from desync.diagnosis.missed import missed, works_on
from desync.diagnosis.words import called, capital, named, place, verb
from desync.model import Cause, Certainty, ClaimKind, Finding, Operation, Status

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
    return roots or standoff.findings(found) or _complete(found) or _unseen(found) or _together(found) or _elsewhere(found)


def _idle(found: Standstill) -> list[Finding]:
    # Of who failed because of others nothing under way was recorded, and it came all the same.
    idle, present = found.roots.get(Root.IDLE, {}), _present(found)
    by_place = {where: left for where, ranks in idle.items() if (left := ranks - present)}
    if not by_place:
        return []
    culprits = tuple(sorted(set().union(*by_place.values())))
    where = missed(found, by_place, culprits[0])
    divergence = divergence_at(found, where)
    expected = expected_next(found.board.traces[culprits[0]])
    if expected is not None and divergence.kind == "p2p" and works_on(found.group_board(where), expected):
        divergence = replace(divergence, op=expected.call.op)
    who = named(culprits)
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.STALLED_RANK,
            certainty=Certainty.LIKELY,
            culprit_ranks=culprits,
            summary=(
                f"{capital(who)} did not come and {verb(culprits, 'has', 'have')} nothing under way; {_waiting(found, where)}."
            ),
            advice=_ABSENT_ADVICE,
            evidence=tuple(_last_of(found, rank) for rank in culprits[:16]),
            time=time_at(found, where),
            divergence=divergence,
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
    where, lagging = _common_place(found, culprits) or (first_of(found, by_place), tuple(sorted(culprits)))
    ahead = [rank for rank in found.group_board(where).lanes if rank not in culprits]
    who = named(culprits)
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.STALLED_RANK,
            certainty=Certainty.LIKELY,
            culprit_ranks=tuple(sorted(culprits)),
            summary=(
                f"{capital(who)} {verb(culprits, 'has', 'have')} called further but finished nothing since "
                f"{name_of(found, where)}, which {named(ahead)} {verb(ahead, 'has', 'have')} finished: "
                f"{verb(culprits, 'its device stands', 'their devices stand')}."
            ),
            advice=_GPU_ADVICE,
            evidence=tuple(head_of(found, rank) for rank in lagging[:16]),
            time=time_at(found, where),
            divergence=divergence_at(found, where),
        )
    ]


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
    unseen = tuple(sorted(set().union(*by_place.values())))
    where = missed(found, by_place)
    divergence = divergence_at(found, where)
    culprits = _blamed(found, unseen, divergence.group.ranks)
    tail = ", and all others wait for these" if culprits else "; who did not come cannot be told from that"
    if divergence.kind == "p2p":
        # What is missing is what the rank without a record did not do.
        divergence = replace(divergence, op="recv" if divergence.op == "send" else "send")
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.UNKNOWN,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=culprits,
            summary=f"{capital(named(unseen))} left no record; {_waiting(found, where)}{tail}.",
            advice=_NO_RECORD_ADVICE,
            time=time_at(found, where),
            divergence=divergence,
        )
    ]


def _blamed(found: Standstill, unseen: tuple[int, ...], awaited: tuple[int, ...]) -> tuple[int, ...]:
    """Of ranks without a record those that may be named; none if it is the records that must be incomplete.

    They are neighbours (a machine that is gone), or all are ``awaited`` in one operation, and in neither case half or more:
    it is as likely then that the logs of a machine were not given.
    """
    present = _present(found)
    blamed = tuple(rank for rank in unseen if rank not in present)
    neighbours = bool(blamed) and blamed[-1] - blamed[0] < len(blamed)
    limit = found.board.evidence.job.world_size or 0 if neighbours else len(awaited) if set(blamed) <= set(awaited) else 0
    return blamed if 2 * len(blamed) < limit or (len(blamed) == 1 and limit == 2) else ()


def _present(found: Standstill) -> set[int]:
    """Ranks that came, by what the messages say."""
    return {rank for claim in found.board.evidence.claims if claim.kind is ClaimKind.PRESENT for rank in claim.ranks}


def _complete(found: Standstill) -> list[Finding]:
    """Collectives that all members are in: they stand for a reason of their own, a rank without a record may only wait."""
    places = found.roots.get(Root.TOGETHER, {})
    whole = {
        place: ranks
        for place, ranks in places.items()
        if found.group_board(place).kind == "collective" and ranks.issuperset(found.group_board(place).group.ranks)
    }
    return _stand_together(found, whole)


def _together(found: Standstill) -> list[Finding]:
    return _stand_together(found, found.roots.get(Root.TOGETHER, {}))


def _stand_together(found: Standstill, by_place: Mapping[Place, set[int]]) -> list[Finding]:
    if not by_place:
        return []
    where = first_of(found, by_place)
    ranks = by_place[where]
    if (differing := _differing(found, where, ranks)) is not None:
        return [differing]
    operation = found.heads[min(ranks)].operation
    return [
        Finding(
            status=Status.HANG,
            cause=Cause.COMMUNICATION_STALLED,
            certainty=Certainty.POSSIBLE,
            culprit_ranks=(),
            summary=f"All of {named(ranks)} are in {called(operation)} at {place(operation.call.site)}; it does not finish.",
            advice=advice(Cause.COMMUNICATION_STALLED),
            time=time_at(found, where),
            divergence=divergence_at(found, where),
        )
    ]


def _differing(found: Standstill, where: Place, ranks: set[int]) -> Finding | None:
    """The finding where ranks stand at one number in different operations; one that has passed it hides that elsewhere."""
    by_op: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        op = found.heads[rank].operation.call.op
        if op != "unrecorded":
            by_op.setdefault(op, []).append(rank)
    if len(by_op) < 2:
        return None
    most, *others = sorted(by_op.values(), key=lambda same: -len(same))
    odd = sorted(rank for same in others for rank in same)
    culprits = tuple(odd) if len(most) > len(odd) else ()
    said = [f"{named(same)} {verb(same, 'is', 'are')} in {called(found.heads[same[0]].operation)}" for same in (odd, most)]
    return Finding(
        status=Status.HANG,
        cause=Cause.RANK_ONLY_COLLECTIVE,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=culprits,
        summary=f"{capital(said[0])}, while {said[1]}: they called different things.",
        advice=advice(Cause.RANK_ONLY_COLLECTIVE),
        evidence=tuple(head_of(found, rank) for rank in (*odd, *most)[:16]),
        time=time_at(found, where),
        divergence=divergence_at(found, where),
    )


def _elsewhere(found: Standstill) -> list[Finding]:
    """Ranks wait, but for whom is not known; if all but one wait, it is that one, possibly."""
    world = found.board.evidence.job.world_size or 0
    silent = tuple(rank for rank in range(min(world, MAX_NAMED)) if rank not in found.heads)
    culprits = _blamed(found, silent, silent) if len(silent) == 1 else ()
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
            summary=f"{capital(named(waiting))} {verb(waiting, 'waits', 'wait')}, first in {called(operation)}, {whom}.",
            advice=advice(Cause.UNKNOWN),
            evidence=tuple(head_of(found, rank) for rank in waiting[:16]),
            time=operation.entered,
        )
    ]


MAX_NAMED = 65536


def _waiting(found: Standstill, where: Place) -> str:
    ranks = found.at(where)
    operation = found.heads[ranks[0]].operation
    did = verb(ranks, "waits", "wait")
    return f"{named(ranks)} {did} in {called(operation)} at {place(operation.call.site)}"
