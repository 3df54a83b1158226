"""The process-group hook: one kernel for each ``c10d::`` operator, at the dispatch key BackendSelect.

Every call of every backend, from Python, from DDP's reducer or from compiled code, passes there (measured on torch 2.13.0 and
2.14.1; an Autograd key misses what runs under ``inference_mode``).  A kernel records, redispatches below its own key, which
lets go of the GIL, and records that the call came back.

This is the only code of desync on the path of every operation; it is written for speed, and each shortcut says why it is right.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from desync.journal.layout import Flag, RecordType
from desync.model import Kind
from desync.recorder import buckets, completion, exceptions
from desync.recorder.groups import GroupEntry, Groups
from desync.recorder.operators import Operator, discover
from desync.recorder.session import Session
from desync.recorder.sites import Sites

PART = "recording operations"
MAX_TENSORS = 8
"""Shapes of more tensors than this (all_gather on a large group) are counted, not kept."""

_now = time.monotonic_ns
_exc_info = sys.exc_info
_getframe = sys._getframe


class Hook:
    """The installed kernels; :meth:`remove` takes them out again."""

    def __init__(self, session: Session, groups: Groups, sites: Sites) -> None:
        import torch
        from torch._C._distributed_c10d import ProcessGroup

        self.session = session
        self.groups = groups
        self.sites = sites
        self.unbox: Callable[[Any], Any] = ProcessGroup.unbox
        self.below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        self.reduce_names = ReduceNames()
        library: Any = torch.library.Library  # untyped in torch
        self._library = library("c10d", "IMPL")
        for operator in discover():
            try:
                self._library.impl(operator.name, make_kernel(self, operator), "BackendSelect", with_keyset=True)
            except Exception as error:  # noqa: BLE001 - the others can still be recorded
                session.failed(f"the hook for c10d::{operator.name}", error)

    def remove(self) -> None:
        """Take the kernels out of the dispatcher."""
        self._library._destroy()


class ReduceNames:
    """The name of a call's reduce op.

    Asking the boxed ``ReduceOp`` itself takes 2.5 µs, longer than the rest of the record.  The functions of
    ``torch.distributed`` that take one hold it in a local variable ``op``, which is read in 0.2 µs.
    """

    def __init__(self) -> None:
        from torch.distributed import ReduceOp
        from torch.distributed import distributed_c10d as c10d

        kinds = [getattr(ReduceOp, name) for name in _REDUCE_OPS if hasattr(ReduceOp, name)]
        self._by_kind = {kind: str(kind).rpartition(".")[2].lower() for kind in kinds}
        self._by_number = {int(kind): name for kind, name in self._by_kind.items()}
        functions = [getattr(c10d, name, None) for name in _REDUCING]
        self._codes = frozenset(
            _innermost(function).__code__ for function in functions if "op" in _innermost(function).__code__.co_varnames
        )

    def name(self, boxed: Any, depth: int) -> str:
        """The name (sum, avg, max, …) of a boxed ReduceOp of the call that is ``depth`` frames out."""
        frame = _getframe(depth)
        caller = frame.f_back
        if caller is not None and caller.f_code in self._codes:
            try:
                return self._by_kind[caller.f_locals["op"]]
            except (KeyError, TypeError):
                pass  # a ReduceOp with a factor (premul_sum): ask the object
        number = boxed.op()
        return self._by_number.get(number, f"reduce op {number}")


_REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced")


def _innermost(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function if hasattr(function, "__code__") else _no_function


def _no_function() -> None:
    """Stands for a function that this torch does not have."""


def make_kernel(hook: Hook, operator: Operator) -> Callable[..., Any]:
    """The kernel of one operator."""
    session, below = hook.session, hook.below
    enter = make_recorder(hook, operator)
    leave = session.writer.left
    finish = completion.watcher(session, operator)
    redispatch = getattr(operator.overload._handle, "redispatch_boxed", None) or operator.overload.redispatch

    def kernel(keyset: Any, *arguments: Any) -> Any:
        try:
            serial, group = enter(arguments)
        except Exception as error:  # noqa: BLE001 - the job comes first
            session.failed(PART, error)
            return redispatch(keyset & below, *arguments)
        try:
            result = redispatch(keyset & below, *arguments)
        except BaseException:
            session.writer.completed(serial, failed=True)
            raise
        leave(serial)
        if group.completes:
            finish(result, serial)
        return result

    return kernel


def make_recorder(hook: Hook, operator: Operator) -> Callable[[tuple[Any, ...]], tuple[int, GroupEntry]]:
    """The function that records that an operation of this kind is entered; returns its serial number and its group."""
    session, unbox, groups = hook.session, hook.unbox, hook.groups._entries
    find, here, thread = hook.groups.find, hook.sites.here, session.thread
    write = session.writer.operation
    signature = make_signature(hook, operator)
    group_at, async_at = operator.group, operator.is_async
    is_p2p = operator.kind is Kind.P2P
    bucket_of = buckets.bucket_of if operator.name == "allreduce_" else buckets.hook_bucket_of
    type_word = RecordType.OPERATION | (Flag.HAS_TAG if operator.tag is not None else 0)

    def enter(arguments: tuple[Any, ...]) -> tuple[int, GroupEntry]:
        entered = _now()
        process_group = unbox(arguments[group_at])
        group = groups.get(process_group) or find(process_group)
        if _exc_info()[1] is not None:
            exceptions.held_back(session)
        call = signature(arguments)
        peer, sequence = 0, 0
        if is_p2p:
            peer, sequence = _pair(operator, arguments, group)
        else:
            sequence = next(group.sequence)
            if operator.root is not None:
                peer = (group.global_rank(arguments[operator.root]) or 0) + 1
        flags = type_word
        # An omitted async_op is True in every schema that has one.
        if async_at is None or len(arguments) <= async_at or arguments[async_at]:
            flags |= Flag.ASYNC
        if group.completes:
            flags |= Flag.COMPLETION_KNOWN
        tag = arguments[operator.tag] if operator.tag is not None and len(arguments) > operator.tag else 0
        bucket = bucket_of(arguments[0], group) if buckets.active else 0
        site = here(3, session.backward_site)
        return write(flags, group.number, sequence, call, site, peer, tag, thread(), bucket, entered), group

    return enter


def _pair(operator: Operator, arguments: tuple[Any, ...], group: GroupEntry) -> tuple[int, int]:
    """The word for the peer (its global rank + 1; 0 if it is not known) and the sequence number of the pair."""
    peer = group.global_rank(arguments[operator.peer]) if operator.peer is not None else None
    other = -1 if peer is None else peer
    ends = (group.me, other) if operator.sends else (other, group.me)
    return other + 1, group.pair_sequence(*ends)


def make_signature(hook: Hook, operator: Operator) -> Callable[[tuple[Any, ...]], int]:
    """The function that gives a call's number in the heap: its shapes, dtypes, reduce op and splits, interned."""
    known: dict[tuple[Any, ...], int] = {}
    inputs, outputs, reduce_at = operator.inputs, operator.outputs, operator.reduce_op
    splits = operator.in_splits is not None
    reduce_name = hook.reduce_names.name
    intern = hook.session.writer.intern

    def signature(arguments: tuple[Any, ...]) -> int:
        key = (
            _tensors(arguments[inputs]) if inputs is not None else (),
            _tensors(arguments[outputs]) if outputs is not None else (),
            reduce_name(arguments[reduce_at], 4) if reduce_at is not None else None,
            _splits(operator, arguments) if splits else None,
        )
        number = known.get(key)
        if number is None:
            number = intern("call", _payload(operator, key), key=(operator.name, key))
            if len(known) < MAX_SIGNATURES:
                known[key] = number
        return number

    return signature


MAX_SIGNATURES = 50_000


def _tensors(value: Any) -> tuple[Any, ...]:
    """Shapes and dtypes of a tensor, a list of tensors or a list of lists, flat: (shape, dtype, shape, dtype, …, left out)."""
    if not isinstance(value, (list, tuple)):
        return (value.shape, value.dtype)
    if len(value) == 1 and not isinstance(value[0], (list, tuple)):
        tensor = value[0]
        return (tensor.shape, tensor.dtype)
    flat = [tensor for item in value for tensor in item] if value and isinstance(value[0], (list, tuple)) else value
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
