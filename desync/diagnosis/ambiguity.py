"""A mismatch without a majority: two ranks, or an even split.

Either side may be the one at fault.  Its own past can decide: a side that does at this line what it always did is not the one
that changed, and a side whose marks explain it (data ended, loop left) is the one.  Where nothing decides, both readings are
given and nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Callable

from desync.diagnosis.advice import advice
from desync.diagnosis.causes import side_causes
from desync.diagnosis.compare import differences, key
from desync.diagnosis.frontier import Parting, divergence
from desync.diagnosis.history import History
from desync.diagnosis.order import Exchange, exchange_at
from desync.diagnosis.suspect import Suspect, same_call
from desync.diagnosis.words import called, capital, named, place
from desync.model import Call, Cause, Certainty, Finding, Operation, Status


def decide(parting: Parting, history: History, suspects_of: Callable[[tuple[int, ...]], list[Suspect]]) -> tuple[int, ...]:
    """The side that is at fault as far as that can be told; empty if it cannot."""
    if (exchange := _exchange(parting)) is not None and exchange.threads:
        return ()  # the same program on all ranks: chance decided
    sides = [(cluster, suspects_of(cluster)) for cluster in parting.clusters]
    explained = [cluster for cluster, suspects in sides if all(side_causes(suspect) for suspect in suspects)]
    if len(explained) == 1:
        return explained[0]
    if explained:
        return ()
    for differs in (_changed, lambda suspect: _alone(suspect, history), lambda suspect: _strayed(suspect, history)):
        found = [cluster for cluster, suspects in sides if all(differs(suspect) for suspect in suspects)]
        if len(found) == 1:
            return found[0]
    return ()


def _strayed(suspect: Suspect, history: History) -> bool:
    """Whether the suspect came to a call that it knows on a way that nobody goes; what is new to it may be behind its loop."""
    own, group = suspect.own, suspect.parting.group.name
    if own is None or own.call.site is None or same_call(suspect):
        return False
    known = history.times(suspect.rank, (own.call.site, group), own.index) > 1
    return known and history.strayed(suspect.rank, own.index)


def _alone(suspect: Suspect, history: History) -> bool:
    """Whether the suspect makes a call that the other side never makes, on a way that it has gone before without it.

    Once is not enough: in the first turn of a loop, the side that leaves a call out looks the same.
    """
    own, theirs, group = suspect.own, suspect.theirs, suspect.parting.group.name
    if own is None or own.call.site is None or theirs.call.site is None or same_call(suspect):
        return False
    if suspect.witness.dropped:
        return False  # "never" cannot be said of a rank whose beginning is lost
    # Only turns before it count: a rank that the backend does not hold there may have gone on without the call again.
    turns = history.times(suspect.rank, (theirs.call.site, group), own.index)
    return turns > 1 and not history.knows(suspect.witness.rank, (own.call.site, group))


def _changed(suspect: Suspect) -> bool:
    """Whether the suspect does something else at this line than it did there before."""
    own = suspect.own
    if own is None or not same_call(suspect) or suspect.parting.board.kind == "group_creation":
        return False  # a loop makes another group in each of its turns
    before = _previous(suspect, own.call)
    return before is not None and key(before) != key(own.call)


def _previous(suspect: Suspect, call: Call) -> Call | None:
    table = suspect.trace.operations
    assert suspect.own is not None  # noqa: S101 - the caller has looked
    for index in range(suspect.own.index - 1, -1, -1):
        earlier = table.calls[table.call[index]]
        if earlier.op == call.op and earlier.site == call.site and earlier.bucket == call.bucket:
            return earlier
    return None


def _exchange(parting: Parting) -> Exchange | None:
    return exchange_at(parting, parting.clusters[0][0], parting.clusters[1][0])


def both_orders(parting: Parting, status: Status, exchange: Exchange) -> Finding:
    """The same for ranks that made the same calls in different order."""
    who = f"{named(parting.clusters[0])} and {named(parting.clusters[1])}"
    why = "no majority says which order is right"
    if exchange.threads:
        why = "several threads of a rank share the group, and chance decides which of them comes first"
    return Finding(
        status=status,
        cause=exchange.cause,
        certainty=Certainty.PROVEN,
        culprit_ranks=(),
        summary=f"{who[0].upper()}{who[1:]} made the same calls of group {parting.group.name} in another order; {why}.",
        advice=advice(exchange.cause),
        evidence=exchange.lines,
        time=parting.time,
        divergence=divergence(parting),
    )


def both_readings(parting: Parting, status: Status) -> Finding:
    """The finding that names what differs and blames nobody."""
    if (exchange := _exchange(parting)) is not None:
        return both_orders(parting, status, exchange)
    operations = [operation for cluster in parting.clusters if (operation := parting.operation(cluster[0])) is not None]
    one, other = operations[0], operations[1]
    same = one.call.op == other.call.op
    fields = differences({one.rank: one.call, other.rank: other.call}) if same else ()
    readings = [
        f"{named(cluster)} called {called(operation)} at {place(operation.call.site)}"
        for cluster, operation in zip(parting.clusters, operations, strict=True)
    ]
    differing = "; ".join(
        f"{field.field} {field.by_rank[one.rank]} on {named([one.rank])}, {field.by_rank[other.rank]} on {named([other.rank])}"
        for field in fields
    )
    cause = Cause.ARGUMENT_MISMATCH if fields else Cause.RANK_ONLY_COLLECTIVE
    evidence = tuple(
        f"reading {number}: {named(cluster)} should not have called {operation.call.op} there"
        for number, cluster, operation in zip(("one", "two"), parting.clusters, operations, strict=False)
    )
    if parting.board.kind == "group_creation":
        cause = Cause.GROUP_CREATION
        evidence = tuple(
            f"{named(cluster)} made {_made(mine)}, and would have to make {_made(theirs)} as well"
            for cluster, mine, theirs in zip(parting.clusters, (one, other), (other, one), strict=False)
        )
    summary = f"{' while '.join(readings)}{': ' + differing if differing else ''}; no majority says which of them is wrong."
    return Finding(
        status=status,
        cause=cause,
        certainty=Certainty.PROVEN if fields else Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=capital(summary),
        advice=advice(cause),
        evidence=evidence,
        time=parting.time,
        divergence=divergence(parting),
    )


def _made(operation: Operation) -> str:
    members = operation.call.members
    return f"a group of {named(members) if members else 'all ranks'} at {place(operation.call.site)}"
