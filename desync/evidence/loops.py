"""Where the loops of the user's source files are.

A rank that left a loop early and a rank that makes a call more inside it leave the same records; whether the two calls are in
one loop is written in the source alone.  The files are those that call sites name: foreign names, so only small regular
Python files are read, and what cannot be parsed has no loops that are known.
"""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterable
from functools import lru_cache

from desync.model import Trace

MAX_FILES = 64
MAX_BYTES = 2 << 20

Loops = tuple[tuple[int, int], ...]
"""First and last line of each loop."""


def loops_of(traces: Iterable[Trace]) -> dict[str, Loops]:
    """The loops of every file in which a rank made a call, as far as its source can be read here and now."""
    names = {
        frame.file for trace in traces for call in trace.operations.calls if call.site is not None for frame in call.site.frames
    }
    found = {name: _read(name) for name in sorted(names)[:MAX_FILES]}
    return {name: loops for name, loops in found.items() if loops is not None}


@lru_cache(maxsize=MAX_FILES)
def _read(name: str) -> Loops | None:
    if not name.endswith(".py"):
        return None
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                return None
            source = file.read(MAX_BYTES)
    except (OSError, ValueError):
        return None
    return parse(source)


def parse(source: bytes) -> Loops | None:
    """The loops of a source text; None if it is not Python that this interpreter can parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.AsyncFor, ast.While))]
    return tuple((node.lineno, node.body[-1].end_lineno or node.lineno) for node in loops)
