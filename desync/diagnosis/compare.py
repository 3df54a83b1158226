"""What the ranks must agree on when they do one operation together, and how to say in what they differ.

Only what has to agree on every backend is compared.  all_to_all may have other sizes on every rank, and so may all_gather,
gather and scatter where a backend allows it; the number of elements counts, not their shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from desync.model import Call, Kind, Tensors

ANYTHING = 0
"""Key of a call of which too little is known to compare it."""

_SAME_INPUTS = frozenset(
    {
        "all_reduce",
        "all_reduce_coalesced",
        "broadcast",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
    }
)
_NO_DATA = frozenset({"barrier", "monitored_barrier"})
_MIXED_DTYPES = frozenset({"unrecorded"})


@dataclass(frozen=True, slots=True)
class Key:
    """The fields of a call that all ranks of its group must share."""

    op: str
    reduce_op: str | None
    root: int | None
    dtypes: tuple[str, ...]
    elements: tuple[int, ...]
    members: tuple[int, ...] | None


def key(call: Call) -> Key | None:
    """The key of a call; None for a call of which nothing is known."""
    if call.op in _MIXED_DTYPES or call.kind is Kind.P2P:
        return None  # the two sides of a p2p operation are counted against each other, not compared
    tensors = call.inputs if call.inputs.shapes else call.outputs
    return Key(
        op=call.op,
        reduce_op=call.reduce_op,
        root=call.root,
        dtypes=() if call.op in _NO_DATA else tuple(sorted(set(tensors.dtypes))),
        elements=_elements(call.inputs) if call.op in _SAME_INPUTS else (),
        members=tuple(sorted(call.members)) if call.members is not None else None,
    )


def _elements(tensors: Tensors) -> tuple[int, ...]:
    return tuple(prod(shape) for shape in tensors.shapes)


class Keys:
    """Numbers for the keys of a job: equal numbers, equal keys; 0 (:data:`ANYTHING`) agrees with all."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}

    def number(self, call: Call) -> int:
        """The number of a call's key."""
        found = key(call)
        return ANYTHING if found is None else self._numbers.setdefault(found, len(self._numbers) + 1)


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which calls of the same operation differ: its name, and its value in words for each rank."""

    field: str
    by_rank: Mapping[int, str]


_FIELDS: tuple[tuple[str, Callable[[Call], object]], ...] = (
    ("shape", lambda call: call.inputs.shapes if call.op in _SAME_INPUTS else None),
    ("dtype", lambda call: call.inputs.dtypes or call.outputs.dtypes),
    ("reduce op", lambda call: call.reduce_op),
    ("root", lambda call: call.root),
    ("members", lambda call: call.members),
)


def differences(calls: Mapping[int, Call]) -> tuple[Difference, ...]:
    """The fields in which the calls of the ranks differ although they must agree."""
    found = []
    for name, get in _FIELDS:
        values = {rank: get(call) for rank, call in calls.items()}
        if len(set(values.values())) > 1:
            found.append(Difference(name, {rank: _word(value) for rank, value in values.items()}))
    return tuple(found)


def _word(value: object) -> str:
    if isinstance(value, tuple):
        items = [list(item) if isinstance(item, tuple) else item for item in value]
        return str(items[0]) if len(items) == 1 else str(items)
    return str(value)
