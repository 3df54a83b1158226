"""Keeping torch.compile away from the recorder.

Inside a compiled function everything that Python runs is a candidate for compilation, the recorder's own functions too: that
takes seconds, fails in places, and says so in the user's log.  Here they are taken out, by the same means as
``torch._dynamo.eval_frame.skip_code`` but without importing the compiler, which a job may never use.

Wrappers around torch's own functions ask :func:`is_compiling` and leave their part out while they are traced, so that a
compiled function has the same graphs as without desync.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

_LEAVES = frozenset({"safe", "record", "finish"})
"""Functions under which nothing of the job's runs: what they call in the standard library is not compiled either."""


def is_compiling() -> bool:
    """Whether the caller is being traced; the compiler itself replaces this by the answer."""
    return False


def keep_away() -> None:
    """Take all functions of the recorder out.  Raises AttributeError or ImportError where torch lacks the means."""
    global is_compiling
    from torch.compiler import is_compiling as torchs_answer

    is_compiling = torchs_answer
    skip = _skipper()
    for name, module in list(sys.modules.items()):
        if name == "desync" or name.startswith(("desync.recorder", "desync.journal")):
            for code in _codes(module):
                skip(code)


def _skipper() -> Callable[[CodeType], None]:
    import torch

    frames: Any = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        return frames.skip_code  # type: ignore[no-any-return]  # torch before 2.7
    alone, with_callees = (
        frames._FrameExecStrategy(frames._FrameAction.SKIP, callees)
        for callees in (frames._FrameAction.DEFAULT, frames._FrameAction.SKIP)
    )
    return lambda code: frames.set_code_exec_strategy(code, with_callees if code.co_name in _LEAVES else alone)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """The code of all functions of a module, those inside of others too."""
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) and value.__module__ == module.__name__ else (value,)
        for member in members:
            yield from _nested(_code(member), module)


def _code(member: Any) -> CodeType | None:
    function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def _nested(code: Any, module: ModuleType) -> Iterator[CodeType]:
    if isinstance(code, CodeType) and code.co_filename == module.__file__:
        yield code
        for constant in code.co_consts:
            yield from _nested(constant, module)
