"""The functions of ``torch.distributed`` themselves, told apart by their code objects."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any


class Functions:
    """Functions of ``distributed_c10d`` that have one of some parameters, for the question whether a frame is one of theirs."""

    def __init__(self, *parameters: str) -> None:
        from torch.distributed import distributed_c10d as c10d

        codes = (_innermost_code(function) for function in vars(c10d).values() if callable(function))
        self._codes = [code for code in codes if code is not None and not _parameters(code).isdisjoint(parameters)]
        # A code object's hash takes longer than the rest of the question; its id is its own as long as it is kept.
        self.ids = frozenset(map(id, self._codes))


def _innermost_code(function: Callable[..., Any]) -> CodeType | None:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _parameters(code: CodeType) -> frozenset[str]:
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
