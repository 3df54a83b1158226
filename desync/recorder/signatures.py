"""What an operation was asked to do, as one number: its shapes, dtypes, reduce op and splits, interned in the journal's heap.

This is on the path of every operation, see :mod:`desync.recorder.hook`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from desync.journal.writer import JournalWriter
from desync.recorder.operators import Operator
from desync.recorder.torch_functions import Functions

MAX_TENSORS = 8
"""Shapes of more tensors than this (all_gather on a large group) are counted, not kept."""
MAX_SIGNATURES = 50_000
"""Of one operator; more of them (shapes that never repeat) are looked up in the journal's own table."""

Signature = Callable[[tuple[Any, ...], "FrameType | None", int], int]
"""Gives a call's number in the heap from its arguments, the frame that called the operator, and the bucket that DDP's reducer
launches with it (0: none)."""


def make_signature(writer: JournalWriter, reduce_names: ReduceNames, operator: Operator) -> Signature:
    """The signature function of one operator."""
    numbers = Numbers(writer, operator)
    anything = _of_anything(numbers, reduce_names, operator)
    if operator.in_splits is not None:
        return anything
    match _type(operator, operator.inputs), _type(operator, operator.outputs):
        case "List[Tensor]", None:
            return _of_one_tensor(numbers, reduce_names, operator, anything)
        case "Tensor", "Tensor":
            return _of_two_tensors(numbers, reduce_names, operator)
    return anything


def _type(operator: Operator, argument: int | None) -> str | None:
    return None if argument is None else str(operator.overload._schema.arguments[argument].type)


def bare_call(writer: JournalWriter, operator: Operator) -> int:
    """The number of an operator's name alone, for calls that cannot be described or find no room in the heap."""
    nothing = ((), (), None, None)
    return writer.intern("call", _payload(operator, nothing), key=(operator.name, nothing))


class Numbers:
    """The signatures of one operator that have been met, by whatever tells them apart."""

    def __init__(self, writer: JournalWriter, operator: Operator) -> None:
        self.known: dict[tuple[Any, ...], int] = {}
        self._writer = writer
        self._operator = operator
        self._bare = bare_call(writer, operator)

    def add(self, key: tuple[Any, ...], parts: tuple[Any, ...]) -> int:
        """Put a signature into the heap; ``parts`` are its inputs, outputs, reduce op and splits."""
        number = self._writer.intern("call", _payload(self._operator, parts), key=(self._operator.name, parts))
        # A signal handler's call in the middle of writing another finds no room, but may the next time.
        if (number or self._writer.full) and len(self.known) < MAX_SIGNATURES:
            self.known[key] = number or self._bare
        return number or self._bare


def _of_anything(numbers: Numbers, reduce_names: ReduceNames, operator: Operator) -> Signature:
    known, add, reduce_name = numbers.known, numbers.add, reduce_names.name
    inputs, outputs, reduce_at = operator.inputs, operator.outputs, operator.reduce_op
    splits = operator.in_splits is not None

    def signature(arguments: tuple[Any, ...], caller: FrameType | None, bucket: int) -> int:
        key = (
            _tensors(arguments[inputs]) if inputs is not None else (),
            _tensors(arguments[outputs]) if outputs is not None else (),
            reduce_name(arguments[reduce_at], caller, bucket) if reduce_at is not None else None,
            _splits(operator, arguments) if splits else None,
        )
        return known.get(key) or add(key, key)

    return signature


def _of_one_tensor(numbers: Numbers, reduce_names: ReduceNames, operator: Operator, anything: Signature) -> Signature:
    """For all_reduce, broadcast, reduce, send and recv, whose one list nearly always has one tensor: nothing to flatten."""
    known, add, reduce_name = numbers.known, numbers.add, reduce_names.name
    inputs, reduce_at = operator.inputs, operator.reduce_op
    assert inputs is not None  # noqa: S101 - tells mypy what make_signature has seen

    def signature(arguments: tuple[Any, ...], caller: FrameType | None, bucket: int) -> int:
        tensors = arguments[inputs]
        if len(tensors) != 1:
            return anything(arguments, caller, bucket)
        tensor = tensors[0]
        shape, dtype = tensor.shape, tensor.dtype
        reduce = reduce_name(arguments[reduce_at], caller, bucket) if reduce_at is not None else None
        key = (shape, dtype, reduce)
        return known.get(key) or add(key, ((shape, dtype), (), reduce, None))

    return signature


def _of_two_tensors(numbers: Numbers, reduce_names: ReduceNames, operator: Operator) -> Signature:
    """For all_gather_into_tensor and reduce_scatter_tensor."""
    known, add, reduce_name = numbers.known, numbers.add, reduce_names.name
    inputs, outputs, reduce_at = operator.inputs, operator.outputs, operator.reduce_op
    assert inputs is not None  # noqa: S101 - tells mypy what make_signature has seen
    assert outputs is not None  # noqa: S101

    def signature(arguments: tuple[Any, ...], caller: FrameType | None, bucket: int) -> int:
        source, target = arguments[inputs], arguments[outputs]
        reduce = reduce_name(arguments[reduce_at], caller, bucket) if reduce_at is not None else None
        key = (source.shape, source.dtype, target.shape, target.dtype, reduce)
        return known.get(key) or add(key, (key[:2], key[2:4], reduce, None))

    return signature


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
