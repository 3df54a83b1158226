"""What each ``c10d::`` operator's arguments mean, read from its schema.

The schemas are the only source: an operator that a newer torch adds is recorded as far as its argument names are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from desync.model import Kind

NAMESPACE = "c10d"

LOCAL = frozenset({"check_for_nan"})
"""Operators of the namespace that communicate with nobody."""

_PUBLIC = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "monitored_barrier_": "monitored_barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv_any_source",
}

_P2P = frozenset({"send", "recv_", "recv_any_source_"})
_INPUTS = ("tensors", "input_tensors", "input_tensor", "input", "inputs", "input_list")
_OUTPUTS = ("output_tensors", "output_tensor", "output", "outputs", "output_lists")
_ROOTS = ("root_rank",)
_PEERS = ("dst", "src")


@dataclass(frozen=True, slots=True)
class Operator:
    """Positions of the arguments of one operator; None where it has none."""

    name: str
    """Its name in the namespace."""
    public: str
    """What the user called."""
    kind: Kind
    overload: Any
    group: int
    inputs: int | None
    outputs: int | None
    reduce_op: int | None
    root: int | None
    peer: int | None
    sends: bool
    tag: int | None
    in_splits: int | None
    out_splits: int | None
    is_async: int | None
    blocks: bool
    """It returns only when the operation is over."""


def discover() -> list[Operator]:
    """Every communicating operator of this torch.  Raises what torch's internals raise where they have changed."""
    import torch

    operators = []
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        if namespace == NAMESPACE and name not in LOCAL:
            packet = getattr(torch.ops.c10d, name)
            operator = describe(name, getattr(packet, overload or "default"))
            if operator is not None:
                operators.append(operator)
    return operators


def describe(name: str, overload: Any) -> Operator | None:
    """An operator's arguments by their names; None if it takes no process group (or cannot be hooked)."""
    arguments = overload._schema.arguments
    if any(argument.kwarg_only for argument in arguments):
        return None  # none has any in torch 2.4 to 2.14; a kernel is given positions only
    positions = {argument.name: position for position, argument in enumerate(arguments)}
    groups = [at for at, argument in enumerate(arguments) if "ProcessGroup" in str(argument.type)]
    if not groups:
        return None
    first = _first(positions)
    barrier = "barrier" in name  # its tensor only carries the device
    return Operator(
        name=name,
        public=_PUBLIC.get(name, name.strip("_")),
        kind=Kind.P2P if name in _P2P else Kind.COLLECTIVE,
        overload=overload,
        group=groups[0],
        inputs=None if barrier else first(_INPUTS),
        outputs=first(_OUTPUTS),
        reduce_op=first(("reduce_op",)),
        root=first(_ROOTS),
        peer=first(_PEERS),
        sends=name == "send",
        tag=first(("tag",)),
        in_splits=first(("input_split_sizes",)),
        out_splits=first(("output_split_sizes",)),
        is_async=first(("async_op", "asyncOp")),
        blocks=name == "monitored_barrier_",
    )


def _first(positions: dict[str, int]) -> Callable[[tuple[str, ...]], int | None]:
    return lambda names: next((positions[name] for name in names if name in positions), None)
