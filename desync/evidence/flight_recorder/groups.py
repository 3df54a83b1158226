"""Which group an entry belongs to: from handles that mean something on one rank only to names that mean the same everywhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from desync.evidence.flight_recorder.columns import RawDump
from desync.model import Group

DEFAULT = "default_pg"
UNDEFINED = "undefined"
"""What torch writes for the description of a group that was given none."""


@dataclass(frozen=True, slots=True)
class Directory:
    """The groups of a job, by their job-wide names."""

    groups: Mapping[str, Group]
    of_rank: Mapping[int, Mapping[str, Group]]
    """The groups of each rank."""
    with_p2p: frozenset[str]
    """Groups in which somebody sends or receives: their counters mix p2p with collectives and cannot be compared."""
    world_size: int
    misnamed: tuple[int, ...]
    """Ranks whose dumps use groups to which they do not belong: the names of the files are not those of the ranks."""

    def name(self, dump: RawDump, group: int) -> str:
        """The name of the group with this index in a dump."""
        return _name(dump.groups[group])


def _name(group: tuple[str, str, int]) -> str:
    name, _, handle = group
    return name or (f"pg {handle}" if handle >= 0 else "0")


def directory(dumps: Mapping[int, RawDump]) -> Directory:
    """Put together what all ranks say about their groups."""
    members: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    users: defaultdict[str, set[int]] = defaultdict(set)
    with_p2p: set[str] = set()
    misnamed = {rank: strange for rank, dump in sorted(dumps.items()) if (strange := _not_its_own(rank, dump))}
    for strange in misnamed.values():
        members.update(strange)
    for rank, dump in dumps.items():
        for group in dump.groups:
            users[_name(group)].add(rank)
            descriptions.setdefault(_name(group), group[1])
        for name, description, ranks in dump.members:
            if name and rank in ranks:
                users[name].add(rank)
                members[name] = ranks
                descriptions.setdefault(name, description)
        with_p2p.update(_name(dump.groups[call[1]]) for call in dump.calls if call[5])
    world = _world(dumps, members, descriptions)
    groups = {name: _group(name, members.get(name), ranks, descriptions.get(name), world) for name, ranks in users.items()}
    of_rank = {rank: {name: groups[name] for name, ranks in users.items() if rank in ranks} for rank in dumps}
    return Directory(groups, of_rank, frozenset(with_p2p), world, tuple(misnamed))


def _not_its_own(rank: int, dump: RawDump) -> dict[str, tuple[int, ...]]:
    """The groups that a dump uses and whose members, by its own list, do not include its rank."""
    used = {_name(group) for group in dump.groups}
    return {name: ranks for name, _, ranks in dump.members if name in used and ranks and rank not in ranks}


def _group(name: str, members: tuple[int, ...] | None, users: set[int], description: str | None, world: int) -> Group:
    if members is None:
        # Not every backend writes members (gloo writes none): the default group has all ranks, others those that used it.
        members = tuple(range(world)) if description == DEFAULT else tuple(sorted(users))
    return Group(name, members, None if description in ("", UNDEFINED, None) else description)


def _world(dumps: Mapping[int, RawDump], members: Mapping[str, tuple[int, ...]], descriptions: Mapping[str, str]) -> int:
    known = [max(ranks) + 1 for ranks in members.values() if ranks]
    anonymous = [max(ranks) + 1 for dump in dumps.values() for _, _, ranks in dump.members if ranks]
    return max([*known, *anonymous, *(rank + 1 for rank in dumps)], default=0)


def handles(dumps: Mapping[int, RawDump], names: Directory) -> dict[int, dict[int, str]]:
    """For each rank the name behind each handle, also of groups of which its dump has no entry.

    A stalled rank's dump can be empty of entries.  Handles and (numeric) names are both given out in the order in which groups
    are created, so that as many of the one as of the other pair up in order; else the handle that the peers use for the same
    kind of group decides.
    """
    found = {rank: {handle: name or f"pg {handle}" for name, _, handle in dump.groups} for rank, dump in dumps.items()}
    usual = _usual_handles(dumps, names)
    for rank, dump in dumps.items():
        known = found[rank]
        numbers = sorted(handle for handle, _, _ in dump.counters)
        own = sorted((name for name, _, ranks in dump.members if name and rank in ranks), key=_creation_order)
        paired = dict(zip(numbers, own, strict=False)) if len(numbers) == len(own) else {}
        if paired and all(paired.get(handle, name) == name for handle, name in known.items()):
            known.update(paired)
            continue
        for name in own:
            handle = usual.get(names.groups[name].description)
            if handle in numbers and handle not in known and name not in known.values():
                known[handle] = name
    return found


def _creation_order(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() and len(name) < 12 else (1, 0, name)


def _usual_handles(dumps: Mapping[int, RawDump], names: Directory) -> dict[str | None, int]:
    votes: defaultdict[str | None, Counter[int]] = defaultdict(Counter)
    for dump in dumps.values():
        for name, description, handle in dump.groups:
            if name and handle >= 0:
                votes[description][handle] += 1
    return {description: counted.most_common(1)[0][0] for description, counted in votes.items()}
