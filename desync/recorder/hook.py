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
from collections.abc import Callable
from types import FrameType
from typing import Any

from desync.journal.layout import Flag, RecordType
from desync.model import Kind
from desync.recorder import backwards, buckets, completion, exceptions
from desync.recorder.groups import GroupEntry, Groups
from desync.recorder.operators import Operator, discover
from desync.recorder.session import Session, quiet
from desync.recorder.sites import Sites
from desync.recorder.torch_functions import Functions

PART = "recording operations"
MAX_TENSORS = 8
"""Shapes of more tensors than this (all_gather on a large group) are counted, not kept."""

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
        import torch

        library: Any = torch.library.Library  # untyped in torch
        self._library = library("c10d", "IMPL")
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


class ReduceNames:
    """The name of a call's reduce op.

    Asking the boxed ``ReduceOp`` itself takes 2.5 to 4 µs, longer than all the rest of the record.  The functions of
    ``torch.distributed`` that take one hold it in a local variable ``op``, which is read in 0.3 µs; and a DDP reducer uses the
    same one for every launch of a bucket, so that it is asked once.
    """

    def __init__(self) -> None:
        from torch.distributed import ReduceOp

        kinds = [getattr(ReduceOp, name) for name in _REDUCE_OPS if hasattr(ReduceOp, name)]
        names = [str(kind).rpartition(".")[2].lower() for kind in kinds]
        # Each is one object that its class keeps for ever, so that its id names it; hashing it calls into pybind.
        self._kinds = kinds
        self._by_id = dict(zip(map(id, kinds), names, strict=True))
        self._by_number = dict(zip(map(int, kinds), names, strict=True))
        self._reducing = Functions("op")
        self._by_bucket: dict[int, str] = {}

    def name(self, boxed: Any, caller: FrameType | None, bucket: int) -> str:
        """The name (sum, avg, max, …) of a boxed ReduceOp.

        ``caller`` is the frame that called the operator; ``bucket`` the label of the bucket that the reducer launches, or 0.
        """
        if caller is not None and id(caller.f_code) in self._reducing.ids:
            # An op with a factor (premul_sum) is another object: it is asked.
            name = self._by_id.get(id(caller.f_locals["op"]))
        else:
            name = self._by_bucket.get(bucket)
        return name or self._ask(boxed, bucket)

    def _ask(self, boxed: Any, bucket: int) -> str:
        number = boxed.op()
        name = self._by_number.get(number, f"reduce op {number}")
        if bucket:
            self._by_bucket[bucket] = name
        return name


_REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


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
    session, unbox, groups = hook.session, hook.unbox, hook.groups._entries
    find, site_at, thread = hook.groups.find, hook.sites.at, session.thread
    write = session.writer.operation
    bare = bare_call(hook, operator)
    signature = make_signature(hook, operator)
    place = make_place(operator)
    group_at, async_at, tag_at = operator.group, operator.is_async, operator.tag
    launched = buckets.launched if operator.name == "allreduce_" else buckets.never
    type_word = RecordType.OPERATION | (Flag.HAS_TAG if tag_at is not None else 0)

    finish, wait = completion.watcher(session, operator), completion.waited(session)
    hold: Finish = functools.partial(backwards.of(session).hold, finish)
    waiting = Functions("async_op", "async_ops").ids if async_at is not None else frozenset()

    def record(arguments: tuple[Any, ...]) -> tuple[int, Finish | None]:
        entered = _now()
        group = groups.get(unbox(arguments[group_at])) or find(unbox(arguments[group_at]))
        peer, sequence = place(arguments, group)
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
        serial = write(flags, group.number, sequence, call, site, peer, tag, thread(), bucket, entered)
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


def make_place(operator: Operator) -> Callable[[tuple[Any, ...], GroupEntry], tuple[int, int]]:
    """The function that gives an operation's word for its root or peer (global rank + 1; 0: none) and its sequence number."""
    if operator.kind is Kind.P2P:
        return lambda arguments, group: _pair(operator, arguments, group)
    root_at = operator.root
    if root_at is None:
        return lambda _arguments, group: (0, next(group.sequence))
    return lambda arguments, group: (_word(group.global_rank(arguments[root_at])), next(group.sequence))


def _word(rank: int | None) -> int:
    return 0 if rank is None else rank + 1


def _pair(operator: Operator, arguments: tuple[Any, ...], group: GroupEntry) -> tuple[int, int]:
    """The word for the peer (its global rank + 1; 0 if it is not known) and the sequence number of the pair."""
    peer = group.global_rank(arguments[operator.peer]) if operator.peer is not None else None
    other = -1 if peer is None else peer
    ends = (group.me, other) if operator.sends else (other, group.me)
    return other + 1, group.pair_sequence(*ends)


Signature = Callable[[tuple[Any, ...], "FrameType | None", int], int]
"""Gives a call's number in the heap from its arguments, the frame that called the operator, and the bucket that DDP's reducer
launches with it (0: none)."""


def make_signature(hook: Hook, operator: Operator) -> Signature:
    """The function that interns a call's shapes, dtypes, reduce op and splits."""
    inputs, outputs, reduce_at = operator.inputs, operator.outputs, operator.reduce_op
    splits = operator.in_splits is not None
    reduce_name = hook.reduce_names.name
    intern = make_intern(hook, operator)
    known: dict[tuple[Any, ...], int] = {}

    def signature(arguments: tuple[Any, ...], caller: FrameType | None, bucket: int) -> int:
        key = (
            _tensors(arguments[inputs]) if inputs is not None else (),
            _tensors(arguments[outputs]) if outputs is not None else (),
            reduce_name(arguments[reduce_at], caller, bucket) if reduce_at is not None else None,
            _splits(operator, arguments) if splits else None,
        )
        return known.get(key) or intern(known, key, key)

    def of_one_tensor(arguments: tuple[Any, ...], caller: FrameType | None, bucket: int) -> int:
        tensors = arguments[inputs]  # type: ignore[index]  # chosen below only where there is one
        if len(tensors) != 1:
            return signature(arguments, caller, bucket)
        tensor = tensors[0]
        shape, dtype = tensor.shape, tensor.dtype
        reduce = reduce_name(arguments[reduce_at], caller, bucket) if reduce_at is not None else None
        key = (shape, dtype, reduce)
        return known.get(key) or intern(known, key, ((shape, dtype), (), reduce, None))

    # all_reduce, broadcast, reduce, send and recv take one list, nearly always of one tensor: no need to flatten it.
    one_list = outputs is None and not splits and inputs is not None and _is_list(operator, inputs)
    return of_one_tensor if one_list else signature


def make_intern(hook: Hook, operator: Operator) -> Callable[[dict[Any, int], Any, tuple[Any, ...]], int]:
    """The function that puts a new signature into the heap and remembers its number."""
    writer = hook.session.writer
    bare = bare_call(hook, operator)

    def intern(known: dict[Any, int], key: Any, parts: tuple[Any, ...]) -> int:
        number = writer.intern("call", _payload(operator, parts), key=(operator.name, parts))
        # A signal handler's call in the middle of writing another finds no room, but may the next time.
        if (number or writer.full) and len(known) < MAX_SIGNATURES:
            known[key] = number or bare
        return number or bare

    return intern


def bare_call(hook: Hook, operator: Operator) -> int:
    """The number of an operator's name alone, for calls that cannot be described or find no room in the heap."""
    nothing = ((), (), None, None)
    return hook.session.writer.intern("call", _payload(operator, nothing), key=(operator.name, nothing))


def _is_list(operator: Operator, argument: int) -> bool:
    return str(operator.overload._schema.arguments[argument].type) == "List[Tensor]"


MAX_SIGNATURES = 50_000


def _tensors(value: Any) -> tuple[Any, ...]:
    """Shapes and dtypes of a tensor, a list of tensors or a list of lists, flat: (shape, dtype, shape, dtype, …, left out)."""
    if type(value) is not list:  # the dispatcher makes its lists itself: they are of no other type
        return (value.shape, value.dtype)
    if len(value) == 1 and type(tensor := value[0]) is not list:
        return (tensor.shape, tensor.dtype)
    flat = [tensor for item in value for tensor in item] if value and type(value[0]) is list else value
    key: list[Any] = []
    for tensor in flat[:MAX_TENSORS]:
        key.append(tensor.shape)
        key.append(tensor.dtype)
    if len(flat) > MAX_TENSORS:
        key.append(len(flat) - MAX_TENSORS)
    return tuple(key)


def _splits(operator: Operator, arguments: tuple[Any, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(arguments[operator.in_splits]), tuple(arguments[operator.out_splits])  # type: ignore[index]  # both or none


def _payload(operator: Operator, key: tuple[Any, ...]) -> dict[str, Any]:
    inputs, outputs, reduce_op, splits = key
    payload: dict[str, Any] = {"op": operator.public, "kind": operator.kind.value}
    if inputs:
        payload["in"] = _described(inputs)
    if outputs:
        payload["out"] = _described(outputs)
    if reduce_op is not None:
        payload["reduce_op"] = reduce_op
    if splits is not None and any(splits):
        payload["in_splits"], payload["out_splits"] = splits
    return payload


def _described(key: tuple[Any, ...]) -> tuple[list[list[int]], list[str], int]:
    cut = key[-1] if len(key) % 2 else 0
    pairs = key[: len(key) // 2 * 2]
    return [list(shape) for shape in pairs[::2]], [str(dtype).removeprefix("torch.") for dtype in pairs[1::2]], cut
