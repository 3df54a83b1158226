"""Which rank a line is about, and which group: launchers, torch and NCCL each count in their own way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from desync.evidence.logs.facts import Facts, GroupTag
from desync.evidence.logs.speakers import Speaker
from desync.model import Group

DEFAULT = "0"
DEFAULT_DESCRIPTION = "default_pg"
MAX_WORLD = 1 << 17
MAX_UNHEARD, MANY = 1 << 15, 1024
"""A log in which fewer than MANY speak is not believed that its job has more ranks than MAX_UNHEARD."""


@dataclass(slots=True)
class Ranks:
    """Ranks and groups of one run."""

    world: int
    single_node: bool
    """Something shows that all ranks are on one node, where local ranks are ranks."""
    tasks_are_ranks: bool
    """srun's tasks are as many as the ranks: with a launcher on each node they count nodes."""
    files_are_ranks: bool
    """The same for numbers in the names of files."""
    by_pid: Mapping[tuple[str | None, int], int]
    by_any_pid: Mapping[int, int]
    groups: dict[str, Group] = field(default_factory=dict)
    inferred: frozenset[str] = frozenset()
    """Groups whose members are partly a guess from their regular distances."""

    def of(self, speaker: Speaker, group_rank: int | None = None) -> int | None:
        """The rank of who says a line; ``group_rank`` is used where nothing else is known, for the default group."""
        if speaker.rank is not None:
            return speaker.rank
        bare = speaker.local is None and speaker.task is None
        if speaker.file_rank is not None and bare:
            return speaker.file_rank
        if speaker.file_number is not None and bare and self.files_are_ranks:
            return speaker.file_number
        if speaker.pid is not None and speaker.pid in self.by_any_pid:
            return self.by_any_pid[speaker.pid]
        if speaker.task is not None and speaker.local is None and self.tasks_are_ranks:
            return speaker.task
        if speaker.local is not None and self.single_node:
            return speaker.local
        return group_rank

    def of_tagged(self, speaker: Speaker, tag: GroupTag | None, group_rank: int | None) -> int | None:
        """The rank of who says a line about a group: where nobody else says it, the group's rank, if its members are known."""
        rank = self.of(speaker)
        if rank is not None or group_rank is None:
            return rank
        if tag is None or group_name(tag, group_rank) == DEFAULT:
            return group_rank
        return self.member(group_name(tag, None), group_rank)

    def of_pid(self, pid: int | None, host: str | None = None) -> int | None:
        """The rank of a process."""
        if pid is None:
            return None
        return self.by_pid.get((host, pid), self.by_any_pid.get(pid))

    def member(self, group: str, group_rank: int) -> int | None:
        """The rank in the job of a group's rank, where its members are known so far."""
        ranks = self.groups[group].ranks if group in self.groups else ()
        return ranks[group_rank] if group_rank < len(ranks) else None


def resolve(facts: Facts) -> Ranks:
    """Find out what can be known of ranks and groups."""
    hosts = {each.host for each in facts.ended if each.host} | {each.host for each in facts.communicators}
    by_pid, by_any = _pids(facts)
    world = _world(facts)
    locals_ = (*(each.local for each in facts.ended), *(each.local for each in facts.speakers))
    launched = facts.launched or any(local is not None for local in locals_)
    files = max((each.file_number for each in facts.speakers if each.file_number is not None), default=-1)
    files_are_ranks = files >= 0 and (files + 1 >= world > 0 or (world == 0 and not launched))
    ranks = Ranks(
        world=max(world, files + 1 if files_are_ranks else 0),
        single_node=max(len(hosts), len({address for address, _ in facts.placed})) <= 1 and _on_one_node(facts, world),
        tasks_are_ranks=_tasks_are_ranks(facts.tasks, world, launched),
        files_are_ranks=files_are_ranks,
        by_pid=by_pid,
        by_any_pid=by_any,
    )
    ranks.groups, ranks.inferred = _groups(facts, ranks)
    return ranks


def _on_one_node(facts: Facts, world: int) -> bool:
    """Whether the local ranks, or the processes of one launcher or host, are as many as the ranks."""
    locals_ = [speaker.local for speaker in facts.speakers if speaker.local is not None]
    locals_ += [each.local for each in facts.ended if each.local is not None]
    places = {(each.host, each.pid) for each in facts.communicators if each.size == world}
    most = max([0, len(places), *(local + 1 for local in locals_), *map(len, _processes(facts).values())])
    return most >= world > 0


def _tasks_are_ranks(tasks: int, world: int, launched: bool) -> bool:
    """``tasks`` is the largest number of a task.  The last may be silent, but a single one says nothing of two ranks."""
    if world == 0:
        return tasks > 0 and not launched
    return tasks + 2 >= world if tasks > 0 else world == 1


def _pids(facts: Facts) -> tuple[dict[tuple[str | None, int], int], dict[int, int]]:
    by_pid: dict[tuple[str | None, int], int] = {}
    largest = max((each.size for each in facts.communicators), default=0)
    for each in facts.communicators:
        if each.size == largest:
            by_pid[(each.host, each.pid)] = each.rank
    for ended in facts.ended:
        if ended.rank is not None and ended.pid is not None:
            by_pid[(ended.host, ended.pid)] = ended.rank
    seen: defaultdict[int, set[int]] = defaultdict(set)
    for (_, pid), rank in by_pid.items():
        seen[pid].add(rank)
    for (_, pid), rank in facts.placed.items():
        seen[pid].add(rank)
    for speaker in facts.speakers:
        if speaker.pid is not None and speaker.rank is not None:
            seen[speaker.pid].add(speaker.rank)
    return by_pid, {pid: min(ranks) for pid, ranks in seen.items() if len(ranks) == 1}


def _world(facts: Facts) -> int:
    """The number of ranks as far as anything tells it."""
    sizes = [*facts.world_sizes, *(each.size for each in facts.communicators), *(each.world for each in facts.joining)]
    sizes += [speaker.rank + 1 for speaker in facts.speakers if speaker.rank is not None]
    sizes += [speaker.file_rank + 1 for speaker in facts.speakers if speaker.file_rank is not None]
    sizes += [rank + 1 for rank in facts.placed.values()]
    sizes += [each.rank + 1 for each in facts.ended if each.rank is not None]
    sizes += [rank + 1 for each in facts.barriers for rank in (*each.missing, each.reached, each.by) if rank is not None]
    sizes += [rank + 1 for each in facts.lagging for rank in each.ranks]
    sizes += [each.group_rank + 1 for each in facts.timeouts if each.group_rank is not None]
    sizes += [each.group_rank + 1 for each in facts.fingerprints]
    sizes.append(sum(map(len, _processes(facts).values())))
    return min(max(sizes, default=0), MAX_WORLD if len(facts.speakers) >= MANY else MAX_UNHEARD)


def _processes(facts: Facts) -> dict[int, set[int]]:
    """The processes that the launchers tell of, by file."""
    processes: defaultdict[int, set[int]] = defaultdict(set)
    for file, pid in facts.signalled:
        processes[file].add(pid)
    for ended in facts.ended:
        if ended.pid is not None:
            processes[ended.speaker.file].add(ended.pid)
    return processes


def group_name(tag: GroupTag | None, rank: int | None, group_rank: int | None = None) -> str:
    """A name that means the same on all ranks, as far as the line allows."""
    if tag is None:
        # torch up to 2.2 names no group; who has another rank there than in the job is in a smaller one.
        return DEFAULT if group_rank is None or rank is None or group_rank == rank else f"unnamed/{rank - group_rank}"
    if tag.guid is not None:
        return tag.guid
    if tag.description == DEFAULT_DESCRIPTION or (tag.description is None and tag.local in (0, None) and tag.rank == rank):
        return DEFAULT
    # Without a job-wide name: two groups of one description and number differ in the distance of their ranks.
    offset = "" if rank is None else f"/{rank - tag.rank}"
    return f"{tag.description or 'pg'} {tag.local if tag.local is not None else '?'}{offset}"


def wrappers_group(rank: int, group_rank: int) -> str:
    """A name for the group of a line of DETAIL's wrapper, which has only the rank there; groups are of neighbours mostly."""
    return DEFAULT if rank == group_rank else f"group with rank {rank - group_rank} first"


def _tags(facts: Facts) -> Iterable[tuple[Speaker, GroupTag]]:
    for status in facts.statuses:
        if status.tag is not None:
            yield status.speaker, status.tag
    for timeout in facts.timeouts:
        if timeout.tag is not None:
            yield timeout.speaker, timeout.tag
    for dump in facts.dumps:
        if dump.tag is not None:
            yield dump.speaker, dump.tag


def _groups(facts: Facts, ranks: Ranks) -> tuple[dict[str, Group], frozenset[str]]:
    places: defaultdict[str, dict[int, int]] = defaultdict(dict)
    descriptions: dict[str, str | None] = {DEFAULT: DEFAULT_DESCRIPTION}
    for speaker, tag in _tags(facts):
        rank = ranks.of(speaker)
        if rank is not None:
            name = group_name(tag, rank)
            places[name][tag.rank] = rank
            if tag.description is not None:
                descriptions[name] = tag.description
    for each in facts.fingerprints:
        if (rank := ranks.of(each.speaker)) is not None and rank != each.group_rank:
            places[wrappers_group(rank, each.group_rank)][each.group_rank] = rank
    silent: set[int | None] = set(range(ranks.world))
    silent -= {ranks.of_tagged(each.speaker, each.tag, each.group_rank) for each in facts.timeouts}
    groups = {DEFAULT: Group(DEFAULT, tuple(range(ranks.world)), DEFAULT_DESCRIPTION, _backend(facts))}
    inferred = set()
    for name, known in places.items():
        if name == DEFAULT or descriptions.get(name) == DEFAULT_DESCRIPTION:
            groups[name] = Group(name, tuple(range(ranks.world)), DEFAULT_DESCRIPTION, _backend(facts))
            continue
        members, guessed = _members(known, ranks.world, silent)
        groups[name] = Group(name, members, descriptions.get(name), _backend(facts))
        if guessed:
            inferred.add(name)
    return groups, frozenset(inferred)


def _backend(facts: Facts) -> str | None:
    if facts.xccl:
        return "xccl"
    return "nccl" if facts.timeouts or facts.statuses or facts.communicators else "gloo" if facts.barriers else None


def _members(known: Mapping[int, int], world: int, silent: set[int | None]) -> tuple[tuple[int, ...], bool]:
    """Members of a group of which some are known: groups are laid out at regular distances, so gaps can be filled.

    The only silent rank of the job belongs to it, too, if it stands just behind the last known member.
    """
    places = sorted(known)
    step = distance(known)
    if step is None:
        return tuple(known[place] for place in places), False
    first = known[places[0]] - places[0] * step
    members = {place: first + place * step for place in range(places[-1] + 1)}
    guessed = len(members) > len(known)
    following = first + (places[-1] + 1) * step
    if not guessed and following < world and silent == {following}:
        members[places[-1] + 1] = following
        guessed = True
    return tuple(members[place] for place in sorted(members)), guessed


def distance(known: Mapping[int, int]) -> int | None:
    """The distance between neighbours, if all known members keep one."""
    places = sorted(known)
    if len(places) < 2:
        return None
    steps = Counter((known[two] - known[one]) / (two - one) for one, two in pairwise(places))
    (step, _), *others = steps.most_common()
    return int(step) if not others and step >= 1 and step == int(step) else None
