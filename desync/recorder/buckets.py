"""Which all_reduce is which bucket of DDP.

DDP's reducer launches its buckets in a fixed order, each as one flat all_reduce, from C++ in the middle of backward.  An
all_reduce that comes from there is the next bucket of the module whose next bucket has as many elements.  With a comm hook
written in Python the bucket is known from the hook's argument instead, and follows the hook's futures.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

active = False
"""Whether this process has a DDP module at all; the hook asks this first."""

_engine: CodeType | None = None
_whole: frozenset[Any] = frozenset()
"""The dtypes of whole numbers: none of a gradient."""


@dataclass(slots=True)
class Bucket:
    """One bucket: its number of elements and the number of its label in the journal's heap."""

    elements: int
    label: int


@dataclass(slots=True, eq=False)
class Launches:
    """Where one DDP module stands in launching its buckets."""

    buckets: list[Bucket] = field(default_factory=list)
    next: int = 0
    parameters: int = 0
    unused_map: int = 0
    """Label of the reduction of the map of used parameters, one whole number for each."""
    map_pending: bool = False
    hooked: bool = False
    """A Python comm hook says which bucket it is."""


modules: list[Launches] = []
"""In the order of their last forwards: backward meets them the other way round."""


class _Context(threading.local):
    label = 0


_context = _Context()


def activate() -> None:
    """Begin to look for buckets: called when the first DDP module is made."""
    global active, _engine, _whole
    import torch
    from torch.autograd import graph

    function = getattr(graph, "_engine_run_backward", None)
    _engine = getattr(function, "__code__", None)
    _whole = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool})
    active = True


def begin(module: Launches) -> None:
    """A forward begins whose backward will launch all buckets of the module."""
    module.next = 0
    module.map_pending = True
    if modules and modules[-1] is not module and module in modules:
        modules.remove(module)
        modules.append(module)


def launched(tensors: Any, caller: FrameType | None) -> int:
    """Label of the bucket that DDP's reducer launches with this all_reduce; 0 if it is not the reducer's.

    ``caller`` is the frame that called the operator: the reducer is C++ inside the engine's, or a thread without Python frames.
    """
    if caller is not None and caller.f_code is not _engine:
        return 0
    return 0 if _context.label else _next_bucket(tensors[0])


def all_launched() -> bool:
    """Whether no module has launched some of its buckets without the others: such a backward does not wait for any."""
    return all(module.next in (0, len(module.buckets)) for module in modules)


def never(_tensors: Any, _caller: FrameType | None) -> int:
    """Stands for :func:`launched` for the operators that the reducer does not use."""
    return 0


def hooked() -> int:
    """Label of the bucket that a comm hook is working on; 0 outside of one."""
    return _context.label


def _next_bucket(tensor: Any) -> int:
    # Shape and dtype are what the signature asks for as well: the second question is cheap, and others would be dear.
    shape = tensor.shape
    elements = shape[0] if len(shape) == 1 else shape.numel()
    if tensor.dtype in _whole:
        return _map_of_used(elements)
    for module in reversed(modules):
        if not module.hooked and module.next < len(module.buckets) and module.buckets[module.next].elements == elements:
            module.next += 1
            return module.buckets[module.next - 1].label
    return 0


def _map_of_used(elements: int) -> int:
    for module in reversed(modules):
        if module.map_pending and module.parameters == elements:
            module.map_pending = False
            return module.unused_map
    return 0


def in_bucket(label: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, with the operations that it launches belonging to a bucket."""

    def inside(*arguments: Any) -> Any:
        before = _context.label
        _context.label = label
        try:
            return function(*arguments)
        finally:
            _context.label = before

    return inside


def follow_futures() -> None:
    """Let callbacks that a comm hook chains to its futures belong to the same bucket."""
    import torch

    futures: Any = torch._C.Future  # what Work.get_future gives; torch.futures.Future inherits from it
    original = futures.then
    if getattr(original, "_desync", False):
        return

    @functools.wraps(original)
    def then(self: Any, callback: Any) -> Any:
        label = _context.label
        return original(self, in_bucket(label, callback) if label else callback)

    then._desync = True  # type: ignore[attr-defined]  # so that it is not wrapped twice
    futures.then = then
