"""The process-group hook: one kernel for each ``c10d::`` operator, at the dispatch key BackendSelect.

Every call of every backend, from Python, from DDP's reducer or from compiled code, passes there (measured on torch 2.13.0 and
2.14.1; an Autograd key misses what runs under ``inference_mode``).  A kernel records, redispatches below its own key, which
lets go of the GIL, and records that the call came back.

This is the only code of desync on the path of every operation; it is written for speed, and each shortcut says why it is right.
"""

from __future__ import annotations

import functools
import sys
import time
from _thread import get_ident
from collections.abc import Callable
from types import FrameType
from typing import Any

from desync.journal.layout import Flag, RecordType
from desync.model import Kind
from desync.recorder import backwards, buckets, completion, exceptions
from desync.recorder.groups import GroupEntry, Groups
from desync.recorder.operators import Operator, discover
from desync.recorder.session import Session, quiet
from desync.recorder.signatures import ReduceNames, bare_call, make_signature
from desync.recorder.sites import Sites
from desync.recorder.torch_functions import Functions

PART = "recording operations"

_now = time.monotonic_ns
_getframe = sys._getframe


def _handled() -> BaseException | None:
    return sys.exc_info()[1]


_exception: Callable[[], BaseException | None] = getattr(sys, "exception", _handled)  # since Python 3.11, and faster


class Hook:
    """The installed kernels; :meth:`remove` takes them out again, :meth:`install` puts them back."""

    def __init__(self, session: Session, groups: Groups, sites: Sites) -> None:
        import torch
        from torch._C._distributed_c10d import ProcessGroup

        self.session = session
        self.groups = groups
        self.sites = sites
        self.unbox: Callable[[Any], Any] = ProcessGroup.unbox
        self.below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self.raw: Callable[[Any], int] = torch._C.DispatchKeySet.raw_repr
        self.lowered: dict[int, Any] = {}
        self.reduce_names = ReduceNames()
        self._kernels = [(operator.name, make_kernel(self, operator)) for operator in discover()]
        self._library: Any = None
        self.install()

    def install(self) -> None:
        """Put the kernels into the dispatcher."""
        from torch import library

        fragment: Any = library.Library  # untyped in torch
        self._library = fragment("c10d", "IMPL")
        for name, kernel in self._kernels:
            try:
                self._library.impl(name, kernel, "BackendSelect", with_keyset=True)
            except Exception as error:  # noqa: BLE001 - the others can still be recorded
                self.session.failed(f"the hook for c10d::{name}", error)

    def remove(self) -> None:
        """Take the kernels out of the dispatcher."""
        self._library._destroy()

    def lower(self, keyset: Any) -> Any:
        """The keys of a call that are below the hook's own, remembered: computing them takes longer than looking them up."""
        lowered = self.lowered[self.raw(keyset)] = keyset & self.below
        return lowered


Finish = Callable[[Any, int], None]
"""Sees to it that the completion of an operation is recorded, given its result and its serial number."""


def make_kernel(hook: Hook, operator: Operator) -> Callable[..., Any]:
    """The kernel of one operator."""
    session, below = hook.session, hook.below
    lowered, lower, raw = hook.lowered, hook.lower, hook.raw
    record = make_recorder(hook, operator)
    leave = session.writer.left
    redispatch = getattr(operator.overload._handle, "redispatch_boxed", None) or operator.overload.redispatch

    def kernel(keyset: Any, *arguments: Any) -> Any:
        try:
            serial, finish = record(arguments)
            deeper = lowered.get(raw(keyset)) or lower(keyset)
        except Exception as error:  # noqa: BLE001 - the job comes first
            session.failed(PART, error)
            serial, finish, deeper = 0, None, keyset & below  # 0: the number of no record
        # Not inside the handler above: an exception of the job's must not have the recorder's as its context.
        try:
            result = redispatch(deeper, *arguments)
        except BaseException:
            fail(session, serial)
            raise
        try:
            leave(serial)
            if finish is not None:
                finish(result, serial)
        except Exception as error:  # noqa: BLE001 - the job comes first
            session.failed(PART, error)
        return result

    return kernel


@quiet(PART)
def fail(session: Session, serial: int) -> None:
    """Record that an operation came back with an exception."""
    session.writer.completed(serial, failed=True)


def make_recorder(hook: Hook, operator: Operator) -> Callable[[tuple[Any, ...]], tuple[int, Finish | None]]:
    """The function that records that an operation of this kind is entered.

    It returns its serial number, and what has to be done to see it complete (None where that cannot be seen).

    It takes the operator's arguments, and must be called by the kernel itself: it looks two frames out for the caller.
    """
    session, unbox, groups, find = hook.session, hook.unbox, hook.groups._entries, hook.groups.find
    site_at, thread, threads = hook.sites.at, session.thread, session._threads
    write = session.writer.operation
    bare, place = bare_call(session.writer, operator), make_place(operator)
    signature = make_signature(session.writer, hook.reduce_names, operator)
    group_at, async_at, tag_at = operator.group, operator.is_async, operator.tag
    launched = buckets.launched if operator.name == "allreduce_" else buckets.never
    type_word = RecordType.OPERATION | (Flag.HAS_TAG if tag_at is not None else 0)
    finish, wait = completion.watcher(session, operator), completion.waited(session)
    hold: Finish = functools.partial(backwards.of(session).hold, finish)
    waiting = Functions("async_op", "async_ops").ids if async_at is not None else frozenset()

    def record(arguments: tuple[Any, ...]) -> tuple[int, Finish | None]:
        entered = _now()
        group = groups.get(unbox(arguments[group_at])) or find(unbox(arguments[group_at]))
        peer, sequence = place(arguments, group) if place is not None else (0, next(group.sequence))
        flags = type_word | (Flag.COMPLETION_KNOWN if group.completes else 0)
        # An omitted async_op is True in every schema that has one.
        if async_at is not None and (len(arguments) <= async_at or arguments[async_at]):
            flags |= Flag.ASYNC
        try:
            if _exception() is not None:
                exceptions.held_back(session)
            caller = _caller()
            bucket = launched(arguments[0], caller) if buckets.active else 0
            call = signature(arguments, caller, bucket)
            if bucket:
                # The reducer runs inside a backward, whose call site was found when it began: the walk would find the same.
                site, watch = session.backward_site or site_at(caller), hold
            else:
                # Threads of autograd have no frames of the user: what they launch belongs to the last backward.
                site = site_at(caller) or session.backward_site
                bucket = buckets.hooked() if buckets.active else 0
                # Torch's own functions wait for what is not asynchronous: seeing that costs less than a callback.
                watch = wait if not flags & Flag.ASYNC and caller is not None and id(caller.f_code) in waiting else finish
        except Exception as error:  # noqa: BLE001 - its place in the group must not be lost with its description
            session.failed(PART, error)
            call, site, bucket, watch = bare, 0, 0, finish
        tag = arguments[tag_at] if tag_at is not None and len(arguments) > tag_at else 0
        number = threads.get(get_ident()) or thread()
        serial = write(flags, group.number, sequence, call, site, peer, tag, number, bucket, entered)
        return serial, watch if group.completes else None

    return record


def _caller() -> FrameType | None:
    """The frame that called the operator: beyond this function, the recorder and the kernel.

    Asked for by its depth, so that no frame object has to be made for those three.
    """
    try:
        return _getframe(3)
    except ValueError:
        return None  # a thread that C++ started, which has no other Python frame


def make_place(operator: Operator) -> Callable[[tuple[Any, ...], GroupEntry], tuple[int, int]] | None:
    """The function that gives an operation's word for its root or peer (global rank + 1) and its sequence number.

    None for operators that have neither root nor peer: they only count.
    """
    if operator.kind is Kind.P2P:
        return lambda arguments, group: _pair(operator, arguments, group)
    root_at = operator.root
    if root_at is None:
        return None
    return lambda arguments, group: (_word(group.global_rank(arguments[root_at])), next(group.sequence))


def _word(rank: int | None) -> int:
    return 0 if rank is None else rank + 1


def _pair(operator: Operator, arguments: tuple[Any, ...], group: GroupEntry) -> tuple[int, int]:
    """The word for the peer (its global rank + 1; 0 if it is not known) and the sequence number of the pair."""
    peer = group.global_rank(arguments[operator.peer]) if operator.peer is not None else None
    other = -1 if peer is None else peer
    ends = (group.me, other) if operator.sends else (other, group.me)
    return other + 1, group.pair_sequence(*ends)
