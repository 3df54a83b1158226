"""What a process is in, as one look at its stacks shows: a call of torch.distributed with what it was asked for, or none.

Whoever waits for an operation that was begun earlier, or for the device on which it runs, stands in a line of the user's that
names neither; such lines are told by their source.  A rank that is wrongly taken for one that waits is blamed for nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from desync.evidence.frames import call_site
from desync.evidence.pyspy_dump import GROUP_CALLS, distributed_call, outermost_call
from desync.model import Call, Frame, Kind, RankStacks

WAIT = "wait"
"""The operation of a call that waits for another one, or for the device; which one it is cannot be seen."""
CONSTRUCTION, FORWARD = "DistributedDataParallel", "forward"
"""What DistributedDataParallel does together on all ranks, besides the backward: it compares models, and sends buffers."""
MAX_SOURCE = 2 << 20
NEAR = 3
"""So many innermost frames can lie between a wait and the file that tells that it is one."""

_WRAPPER = "torch/distributed/c10d_logger.py"
_SPAWN = "torch/multiprocessing/spawn.py"
_LOADER_WORKER = "torch/utils/data/_utils/worker.py"
_CONSTRUCTION = frozenset({"_verify_param_shape_across_processes", "_sync_module_states", "_sync_params_and_buffers"})
_WAITS = re.compile(r"\.(?:wait|synchronize|wait_stream|wait_event|item|tolist|cpu|numpy)\(")
_DISTRIBUTED = re.compile(r"/torch/distributed/(?!checkpoint/|elastic/)")
_DDP = re.compile(r"/torch/nn/parallel/distributed\.py$")
_DEVICE = re.compile(r"/torch/(?:cuda|xpu|accelerator)/")
_MEMBERS = re.compile(r"\[\d{1,7}(?:, \d{1,7}){0,4096}\]")
_NUMBER = re.compile(r"\d{1,7}")

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one process stands."""

    call: Call | None
    """What it is in; None: in no call of torch.distributed."""
    default_group: bool | None
    """Whether the call is one of the default group; None: not known."""
    frames: tuple[Frame, ...]
    """Of the thread that is in the call, else of the main thread."""
    is_main: bool
    """Whether that is the main thread."""


def standing(stacks: RankStacks, variables: Sequence[Sequence[Values]] = (), pid: int | None = None) -> Standing:
    """Where a process stands; ``variables`` are those of each frame of each thread, where they are known.

    A thread beside the main one counts only if the main thread is in no call.  Sources are looked for where the process ``pid``
    sees them, which may be in a container.
    """
    for index, thread in enumerate(stacks.threads):
        values = variables[index] if index < len(variables) else ()
        call = _call(thread.frames, pid)
        if call is not None:
            asked, default = _asked_for(call, thread.frames, values)
            return Standing(asked, default, thread.frames, is_main=index == 0)
    first = stacks.threads[0].frames if stacks.threads else ()
    return Standing(None, None, first, is_main=True)


def _call(frames: tuple[Frame, ...], pid: int | None) -> Call | None:
    found = distributed_call(frames)
    if found is not None or not frames:
        return found
    site = call_site([(frame.function, frame.file, frame.line) for frame in frames])
    near = frames[:NEAR]
    if any(frame.function in _CONSTRUCTION and _DISTRIBUTED.search(frame.file) for frame in near):
        return Call(CONSTRUCTION, Kind.COLLECTIVE, site=site)
    if any(_DDP.search(frame.file) for frame in near):
        return Call(FORWARD, Kind.COLLECTIVE, site=site)
    waits = any(_DISTRIBUTED.search(frame.file) for frame in near) or _DEVICE.search(frames[0].file) is not None
    if waits or (not frames[0].is_native and _WAITS.search(_source(frames[0], pid))):
        return Call(WAIT, Kind.COLLECTIVE, site=site)
    return None


def _source(frame: Frame, pid: int | None) -> str:
    seen = f"/proc/{pid}/{'root' if frame.file.startswith('/') else 'cwd/'}{frame.file}"
    lines = (_lines(seen) if pid is not None else ()) or _lines(frame.file)
    return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""


@lru_cache(maxsize=64)
def _lines(name: str) -> tuple[str, ...]:
    """A source file, as far as it can be read here: its name is foreign, so only small regular Python files are."""
    if not name.endswith(".py"):
        return ()
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SOURCE:
                return ()
            return tuple(file.read(MAX_SOURCE).decode("utf-8", "replace").splitlines())
    except (OSError, ValueError):
        return ()


def _asked_for(call: Call, frames: Sequence[Frame], values: Sequence[Values]) -> tuple[Call, bool | None]:
    """The call with its peer, root or members, and whether its group is the default one."""
    outer = outermost_call(frames)
    if outer is None or outer >= len(values):
        return call, None
    own = values[outer]
    wrapper = next((seen for frame, seen in zip(frames[outer + 1 :], values[outer + 1 :], strict=False) if _wraps(frame)), {})
    default = True if call.op in GROUP_CALLS else _is_default(own, wrapper)
    source, destination = _number(own.get("src")), _number(own.get("dst"))
    if call.kind is Kind.P2P:
        return replace(call, peer=source if "recv" in call.op else destination), default
    if call.op == "new_group" and _MEMBERS.fullmatch(own.get("ranks", "")):
        return replace(call, members=tuple(map(int, own["ranks"][1:-1].split(", ")))), default
    return replace(call, root=source if source is not None else destination), default


def _wraps(frame: Frame) -> bool:
    return frame.file.endswith(_WRAPPER)


def _is_default(own: Values, wrapper: Values) -> bool | None:
    """By what the caller gave: torch puts the default group in the variable ``group`` where nothing was given."""
    if "args" in wrapper or "kwargs" in wrapper:
        given = f"{wrapper.get('args', '')} {wrapper.get('kwargs', '')}".replace('"group": None', "")
        if "ProcessGroup" in given or '"group"' in given:
            return False
        return None if "..." in given else True
    return True if own.get("group") == "None" else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def is_loader_worker(stacks: RankStacks) -> bool:
    """Whether the process is a worker of a data loader, and no rank."""
    return any(frame.file.endswith(_LOADER_WORKER) for thread in stacks.threads for frame in thread.frames)


def is_spawned(stacks: RankStacks) -> bool:
    """Whether ``torch.multiprocessing.spawn`` started it."""
    return any(frame.file.endswith(_SPAWN) for thread in stacks.threads[:1] for frame in thread.frames)


def rank_and_world(variables: Sequence[Sequence[Values]]) -> tuple[int | None, int | None]:
    """The rank and the world size that the main thread's own variables tell, outermost frames first.

    A process that ``torch.multiprocessing.spawn`` started has at least the index that it was given.
    """
    found: dict[str, int] = {}
    for values in reversed(variables[0] if variables else ()):
        for name, text in values.items():
            number = _number(text)
            if number is not None:
                found.setdefault(name, number)
    return found.get("global_rank", found.get("rank", found.get("i"))), found.get("world_size")
