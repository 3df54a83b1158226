"""Process groups of this process: their job-wide names, ranks, and the counters of their operations."""

from __future__ import annotations

import itertools
from typing import Any

from desync.journal.writer import JournalWriter

WORLD = "default_pg"


class GroupEntry:
    """One process group as the hook needs it."""

    __slots__ = ("completes", "me", "name", "number", "pairs", "ranks", "sequence")

    def __init__(self, name: str, number: int, ranks: tuple[int, ...], me: int, completes: bool) -> None:
        self.name = name
        self.number = number
        self.ranks = ranks
        self.me = me
        """This process's global rank."""
        self.completes = completes
        """Whether every backend of the group is gloo, whose work calls back when it is done."""
        self.sequence = itertools.count(1)
        self.pairs: dict[tuple[int, int], itertools.count[int]] = {}

    def global_rank(self, group_rank: int) -> int | None:
        """The global rank of a rank of the group."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else None

    def pair_sequence(self, source: int, destination: int) -> int:
        """The next sequence number of a (source, destination) pair; -1 stands for a source that is not known."""
        counter = self.pairs.get((source, destination))
        if counter is None:
            counter = self.pairs.setdefault((source, destination), itertools.count(1))
        return next(counter)


class Groups:
    """All process groups that this process has used.

    An entry keeps its group alive, as torch's own tables do until ``destroy_process_group``; :meth:`forget` is called there.
    """

    def __init__(self, writer: JournalWriter, c10d: Any) -> None:
        self._writer = writer
        self._c10d = c10d
        self._entries: dict[Any, GroupEntry] = {}
        self._used: dict[str, int] = {}
        self.any_gloo = False

    def find(self, group: Any) -> GroupEntry:
        """The entry of a ``ProcessGroup``."""
        entry = self._entries.get(group)
        return entry if entry is not None else self._register(group)

    def forget(self, group: Any | None) -> None:
        """Let go of a group that is being destroyed; of all if it is None."""
        if group is None:
            self._entries.clear()
        else:
            self._entries.pop(group, None)

    def _register(self, group: Any) -> GroupEntry:
        ranks = self._ranks(group)
        name = self._name(group)
        backend = self._backend(group)
        gloo = bool(backend) and all(part.rpartition(":")[2] == "gloo" for part in backend.split(","))
        self.any_gloo = self.any_gloo or "gloo" in backend
        number = self._writer.intern(
            "group",
            {"name": name, "ranks": ranks, "description": self._description(group), "backend": backend or None},
            key=(name, ranks, backend),
        )
        entry = GroupEntry(name, number, ranks, ranks[group.rank()] if group.rank() < len(ranks) else group.rank(), gloo)
        return self._entries.setdefault(group, entry)

    def _ranks(self, group: Any) -> tuple[int, ...]:
        table = self._table("pg_group_ranks").get(group)
        if table:
            return tuple(sorted(table, key=lambda rank: table[rank]))
        return tuple(range(group.size()))

    def _name(self, group: Any) -> str:
        description = self._description(group)
        name = WORLD if description == WORLD else str(group.group_name)
        # torch begins its numbering anew after destroy_process_group(); every rank does so at the same point.
        uses = self._used[name] = self._used.get(name, 0) + 1
        return name if uses == 1 else f"{name}@{uses}"

    def _description(self, group: Any) -> str | None:
        description = getattr(group, "group_desc", None)
        return str(description) if description and description != "undefined" else None

    def _backend(self, group: Any) -> str:
        return str(self._table("pg_backend_config").get(group, ""))

    def _table(self, name: str) -> Any:
        """One of torch's own tables of groups; an empty one where this torch has it no more."""
        return getattr(getattr(self._c10d, "_world", None), name, {})
