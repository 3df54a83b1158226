"""Who waits for those that wait: the chain behind a parting, from the ranks that wait there to the last victim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from desync.diagnosis.frontier import Parting
from desync.diagnosis.words import called, named, place, verb

MAX_LINKS = 16


def links(root: Parting, partings: Iterable[Parting]) -> tuple[str, ...]:
    """Each wait for a rank that is itself held, in words; empty if nobody waits but those at ``root``."""
    return tuple(_links(root, list(partings)))[:MAX_LINKS]


def _links(root: Parting, partings: list[Parting]) -> Iterator[str]:
    held, left = set(root.pending), [each for each in partings if each is not root and each.pending]
    while found := [each for each in left if held.intersection(each.absent)]:
        for parting in found:
            victims = tuple(rank for rank in parting.pending if rank not in held)
            if victims:
                yield _link(parting, victims, tuple(sorted(held.intersection(parting.absent))))
        held.update(rank for parting in found for rank in parting.pending)
        left = [each for each in left if not any(each is parting for parting in found)]


def _link(parting: Parting, victims: tuple[int, ...], waits_for: tuple[int, ...]) -> str:
    operation = parting.held_in(victims[0])
    if operation is None:
        return f"{named(victims)} {verb(victims, 'waits', 'wait')} for {named(waits_for)}"
    what = f"in {called(operation)} of group {operation.group} at {place(operation.call.site)} "
    whom = f"{named(waits_for)}, {verb(waits_for, 'which waits itself', 'which wait themselves')}"
    return f"{named(victims)} {verb(victims, 'waits', 'wait')} {what}for {whom}"
