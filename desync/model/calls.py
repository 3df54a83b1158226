"""What ranks ask of torch.distributed: calls, their sites and groups, and the operations of a rank in columns."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from desync.model.words import Kind

_INSTALLED = re.compile(
    r"(^|/)(site-packages|dist-packages|lib(64)?/python[\d.]+)/"
    r"|(^|/)torch/(_\w+|amp|autograd|cuda|distributed|fx|library|multiprocessing|nn|optim|serialization|utils)\b"
    r"|(^|/)desync/(recorder|journal)/"
    r"|(^|/)sitecustomize\.py$"
    r"|^<frozen "
)
_NATIVE = re.compile(r"^$|^\?\?$|^\[|\.so(\.[\d.]+)?$|\.(c|cc|cpp|cxx|cu|h|hpp|rs|S|pyx|pxd)$|(^|/)python[\d.]*$")


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python (or native) frame."""

    function: str
    file: str
    line: int

    @property
    def is_native(self) -> bool:
        """Whether it is machine code and not Python's."""
        return bool(_NATIVE.search(self.file))

    @property
    def is_users(self) -> bool:
        """Whether it is the user's: Python, and neither installed, torch's, the standard library's nor desync's.

        Decided by the path alone, so that a report reads the same on another machine.
        """
        if self.is_native or _INSTALLED.search(self.file):
            return False
        stem, _, suffix = self.file.partition(".")
        # Some sources shorten the standard library's files to a bare name.
        return not (suffix == "py" and stem in sys.stdlib_module_names)


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where the user's code made a call: the innermost user frame first, then its callers (user frames only)."""

    frames: tuple[Frame, ...]

    @property
    def innermost(self) -> Frame:
        """The frame that is reported: file, line, function."""
        return self.frames[0]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Shape and dtype of each tensor that went in or comes out, in order; ``cut`` counts those left out."""

    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    cut: int = 0

    @property
    def dtype(self) -> str | None:
        """The dtype, if all tensors share one."""
        return self.dtypes[0] if len(set(self.dtypes)) == 1 else None


@dataclass(frozen=True, slots=True)
class Call:
    """Everything that one operation was asked to do; equal calls are one object (per trace)."""

    op: str
    """Public name: all_reduce, broadcast, all_gather_into_tensor, send, new_group, …"""
    kind: Kind
    inputs: Tensors = Tensors()
    outputs: Tensors = Tensors()
    reduce_op: str | None = None
    root: int | None = None
    """Global rank of the root of a broadcast, reduce, gather or scatter."""
    peer: int | None = None
    """Global rank of the other side of a send or recv; None for a recv from any."""
    tag: int | None = None
    in_splits: tuple[int, ...] | None = None
    out_splits: tuple[int, ...] | None = None
    is_async: bool | None = None
    site: CallSite | None = None
    bucket: str | None = None
    """"DDP bucket 0: fc.weight, fc.bias" where the operation is DDP's."""
    members: tuple[int, ...] | None = None
    """For Kind.GROUP: the global ranks that the call was given, where known."""
    completion_known: bool = True
    """Whether the source would have seen it complete; if not, a missing completion proves nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its job-wide name, what the user called it, its global ranks in group order, and its backend."""

    name: str
    ranks: tuple[int, ...]
    description: str | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one rank: a row of :class:`OperationTable`."""

    rank: int
    index: int
    """Row in the rank's table; rows are in the order in which the rank entered them."""
    group: str
    seq: int
    """Position in the group on this rank, from 1; for p2p in the (source, destination) pair of the group."""
    call: Call
    thread: int
    entered: int | None
    returned: int | None
    """When the call came back; for an asynchronous operation that says nothing about its completion."""
    completed: int | None
    """When the communication finished, where that can be known."""
    failed: bool
    """It ended with an error."""
    pending: bool
    """It was entered and is not known to have finished, and this source would have known."""

    @property
    def holds(self) -> bool:
        """Whether the rank may be held in it: it is pending, and nobody knows that the rank went on beside it."""
        return self.pending and (self.call.kind is Kind.P2P or self.call.is_async is not True)


def _q() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True)
class OperationTable:
    """The operations that one rank entered, oldest first, in columns.

    A job has millions of operations; columns of machine integers keep a thousand ranks within memory.  0 in a time column
    means that it did not happen (yet) or is not known; :meth:`row` turns it into ``None``.
    """

    calls: tuple[Call, ...] = ()
    groups: tuple[str, ...] = ()
    call: array[int] = field(default_factory=_q)
    """Index into ``calls``."""
    group: array[int] = field(default_factory=_q)
    """Index into ``groups``."""
    seq: array[int] = field(default_factory=_q)
    thread: array[int] = field(default_factory=_q)
    entered: array[int] = field(default_factory=_q)
    returned: array[int] = field(default_factory=_q)
    completed: array[int] = field(default_factory=_q)
    """Negative: it failed, at minus this time."""

    def __len__(self) -> int:
        return len(self.seq)

    def row(self, rank: int, index: int) -> Operation:
        """The operation at ``index`` (negative counts from the end) as an object."""
        if index < 0:
            index += len(self)
        completed = self.completed[index]
        call = self.calls[self.call[index]]
        done = bool(completed) or (call.kind is Kind.GROUP and bool(self.returned[index]))
        return Operation(
            rank=rank,
            index=index,
            group=self.groups[self.group[index]],
            seq=self.seq[index],
            call=call,
            thread=self.thread[index],
            entered=self.entered[index] or None,
            returned=self.returned[index] or None,
            completed=abs(completed) or None,
            failed=completed < 0,
            pending=not done and (call.completion_known or not self.returned[index]),
        )

    def rows(self, rank: int) -> Iterator[Operation]:
        """All operations, oldest first."""
        return (self.row(rank, index) for index in range(len(self)))
