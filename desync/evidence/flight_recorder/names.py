"""The names that a dump uses, in desync's words."""

from __future__ import annotations

import re

_OPERATIONS = {
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
}
"""Backends' names of operations, lower case."""

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
    "complexhalf": "complex32",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}

P2P = re.compile(r"(send|recv)(?: (\d{1,9})(?:->|<-)(\d{1,9}))?")
MAX_NAME = 100


def operation(name: str) -> tuple[str, str | None]:
    """Public name and backend of an operation that a dump calls "nccl:_all_gather_base"; unknown names stay."""
    backend, colon, rest = name.rpartition(":")
    return public(rest), backend if colon and backend else None


def public(name: str) -> str:
    """What the user called, for a backend's name of it in any case."""
    low = name.lower()
    return _OPERATIONS.get(low, low)[:MAX_NAME]


def dtype(name: str) -> str:
    """torch's public name of a dtype that C++ calls "BFloat16"."""
    return _DTYPES.get(name.lower(), name.lower())[:MAX_NAME]


def peers(name: str) -> tuple[str, int | None, int | None] | None:
    """For "send 0->1": send (or recv), the own and the other rank in the group; None for a name of another form."""
    found = P2P.fullmatch(name)
    if found is None:
        return None
    return found[1], int(found[2]) if found[2] else None, int(found[3]) if found[3] else None
