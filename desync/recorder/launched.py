"""Which rank this process is: what its launcher and its call of init_process_group say."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from desync.recorder import claims

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def claimed_rank() -> int | None:
    """The rank of this process, if a launcher gave it one and no ancestor has taken it (children inherit the variables).

    ``RANK`` alone does not say so: cluster managers set it to the number of a node, for a launcher that is no rank.
    """
    if "RANK" in os.environ and "LOCAL_RANK" not in os.environ:
        return None
    rank = _launched_rank()
    if rank is None or claims.ancestor() or claims.is_launcher():
        return None
    claims.take()
    return rank


def world_size() -> int | None:
    """The number of ranks that the launcher tells."""
    return _number("WORLD_SIZE") or _number("OMPI_COMM_WORLD_SIZE") or _number("PMI_SIZE")


def asked_for(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[int | None, int | None]:
    """Rank and world size that a call of init_process_group asks for, or else those that the launcher tells."""
    try:
        given: dict[str, Any] = inspect.signature(function).bind_partial(*arguments, **options).arguments
    except TypeError:
        given = {}  # the call will fail; that is the job's business
    address = given.get("init_method")
    query = parse_qs(urlsplit(address).query) if isinstance(address, str) else {}
    rank, size = given.get("rank"), given.get("world_size")
    if not isinstance(rank, int) or rank < 0:
        rank = _first(query.get("rank")) if "rank" in query else _launched_rank()
    if not isinstance(size, int) or size <= 0:
        size = _first(query.get("world_size")) if "world_size" in query else world_size()
    return rank, size


def _launched_rank() -> int | None:
    return next((number for name in _RANK_VARIABLES if (number := _number(name)) is not None), None)


def _first(values: list[str] | None) -> int | None:
    return int(values[0]) if values and values[0].isdigit() else None


def _number(variable: str) -> int | None:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else None
