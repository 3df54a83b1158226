"""Calls about groups: init_process_group, new_group, split_group, destroy_process_group.  They hang too."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from desync.journal.layout import Flag, Header, RecordType
from desync.journal.writer import JournalWriter
from desync.recorder import exceptions
from desync.recorder.groups import WORLD, Groups
from desync.recorder.session import Session, quiet
from desync.recorder.sites import Sites

MAX_RANKS = 1 << 16
NAMES = ("new_group", "split_group", "shrink_group")
_LOOKED_AT = frozenset({list, tuple, range, set, frozenset})


class _Inside(threading.local):
    """How many of these calls this thread is in."""

    depth = 0


class GroupCalls:
    """Records that a call about a group was entered and came back."""

    def __init__(self, session: Session, groups: Groups, sites: Sites) -> None:
        self.session = session
        self.groups = groups
        self.sites = sites
        self._sequence = itertools.count(1)
        self._inside = _Inside()
        # In case that the heap is full when they are called with their members.
        self._bare = {op: self._call(op, None) for op in (*NAMES, "init_process_group", "destroy_process_group")}

    @quiet("recording group calls")
    def entered(self, op: str, members: tuple[int, ...] | None = None) -> int | None:
        """Record the beginning; returns the serial number, None for calls that another of these made itself."""
        self._inside.depth += 1
        if self._inside.depth > 1:
            return None
        if sys.exc_info()[1] is not None:
            exceptions.held_back(self.session)
        writer = self.session.writer
        call = self._call(op, members) or self._bare[op]
        # The group itself may not exist yet; when it does, its own entry takes the place of this one.
        world = writer.intern("group", {"name": WORLD, "ranks": _world_ranks(writer), "description": WORLD}, key=WORLD)
        return writer.operation(
            RecordType.OPERATION | Flag.COMPLETION_KNOWN,
            world,
            next(self._sequence),
            call,
            self.sites.here(4),
            0,
            0,
            self.session.thread(),
            0,
            time.monotonic_ns(),
        )

    def _call(self, op: str, members: tuple[int, ...] | None) -> int:
        payload = {"op": op, "kind": "group", "members": members}
        return self.session.writer.intern("call", payload, key=(op, members))

    @quiet("recording group calls")
    def left(self, serial: int | None, failed: bool) -> None:
        """Record the end."""
        self._inside.depth -= 1
        if serial is not None:
            self.session.writer.left(serial)
            self.session.writer.completed(serial, failed)

    def around(self, original: Callable[..., Any], op: str, members: tuple[int, ...] | None = None) -> Callable[..., Any]:
        """``original`` with both recorded; ``members`` are ranks of the group, where its arguments do not tell them."""

        @functools.wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            # A group that its members make among themselves is no matter of the other ranks.
            said = "new_local_group" if options.get("use_local_synchronization") else op
            serial = self.entered(said, members or _members(op, arguments, options))
            try:
                result = original(*arguments, **options)
            except BaseException:
                self.left(serial, failed=True)
                raise
            self.left(serial, failed=False)
            return result

        return call


def _members(op: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, ...] | None:
    """The ranks that a call names.  Only what can be looked at twice is looked at: torch must find an iterator unused."""
    ranks: Any = options.get("ranks", arguments[0] if arguments and op == "new_group" else None)
    if type(ranks) not in _LOOKED_AT:
        return None
    if all(type(rank) is int for rank in ranks):
        return tuple(ranks)
    try:
        return tuple(int(rank) for rank in ranks)
    except Exception:  # noqa: BLE001 - __int__ of the user's class may do anything
        return None


def _world_ranks(writer: JournalWriter) -> list[int]:
    return list(range(min(writer.words[Header.WORLD_SIZE], MAX_RANKS)))
