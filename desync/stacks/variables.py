"""The few variables in a stack that tell which rank a process is, and what its call of torch.distributed was asked for.

Everything else that the user's variables hold is dropped where it is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Variables = tuple[Mapping[str, str], ...]
"""For each frame of a thread, innermost first, the variables that are kept, as py-spy shows them."""

MAX_VARIABLES = 256
MAX_VALUE = 200

_NUMBERS = frozenset({"rank", "global_rank", "world_size"})
_OF_FILES = (
    ("torch/distributed/distributed_c10d.py", frozenset({"group", "src", "dst", "ranks"})),
    ("torch/distributed/c10d_logger.py", frozenset({"args", "kwargs"})),
    ("torch/multiprocessing/spawn.py", frozenset({"i"})),
)
_NUMBER = re.compile(r"\d{1,7}")


def kept(file: str, raw: Any) -> Mapping[str, str]:
    """What is kept of the ``locals`` that py-spy gives for a frame of ``file``."""
    names = next((names for end, names in _OF_FILES if file.endswith(end)), frozenset())
    found = {}
    for entry in raw[:MAX_VARIABLES] if isinstance(raw, list) else ():
        name, value = (entry.get("name"), entry.get("repr")) if isinstance(entry, dict) else (None, None)
        if isinstance(name, str) and isinstance(value, str) and (name in names or _is_number(name, value)):
            found[name] = value[:MAX_VALUE]
    return found


def _is_number(name: str, value: str) -> bool:
    return name in _NUMBERS and _NUMBER.fullmatch(value) is not None
