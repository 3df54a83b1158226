"""Stacks that a person has taken with ``py-spy dump``, one rank or several in a file, as text or as JSON.

From the stacks alone one can see which call of torch.distributed each rank is in, and which ranks are in none.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from desync.evidence.frames import call_site
from desync.model import Call, Frame, Group, Kind, OperationTable, RankStacks, Stack, Trace

SOURCE = "py-spy"
MAX_THREADS = 256
MAX_FRAMES = 512
MAX_NAME = 300
MAX_PROCESSES = 65536

_PROCESS = re.compile(r"^Process (\d{1,9}): (.{0,4000})$")
_THREAD = re.compile(r'^Thread (?:0x)?[0-9a-fA-F]{1,18} \((active|idle|active\+gil|\w{1,20})\)(?:: "(.{0,300})")?')
_FRAME = re.compile(r"^\s{2,12}(.{1,1000}?) \(([^()]{1,1000}?)(?::(\d{1,9}))?\)$")
_RANK = re.compile(r"--(?:global[_-])?rank[= ](\d{1,7})\b")

_CALLS = re.compile(
    r"^(?:all_reduce|all_gather\w*|all_to_all\w*|reduce_scatter\w*|reduce|broadcast\w*|gather\w*|scatter\w*|barrier|"
    r"monitored_barrier|send\w*|recv\w*|batch_isend_irecv|new_group|init_process_group|destroy_process_group|split_group)$"
)
_BACKWARD = frozenset({"_engine_run_backward", "backward"})
BACKWARD = "backward"
"""The operation of a rank that is in its backward pass: some collective of it, which one is not in the stack."""
P2P = ("send", "recv", "batch_isend_irecv")
"""How the names of calls between two ranks begin."""
GROUP_CALLS = frozenset({"new_group", "init_process_group", "destroy_process_group", "split_group"})


@dataclass(frozen=True, slots=True)
class Dumped:
    """The threads of one process; ``rank`` only where its command line tells."""

    pid: int | None
    rank: int | None
    threads: tuple[Stack, ...]


def parse(text: str) -> list[Dumped]:
    """All processes in a dump; what does not fit is left out."""
    if text.lstrip()[:1] == "[":
        threads = tuple(_json_threads(text))
        return [Dumped(None, None, _main_first(threads))] if threads else []
    return [dumped for dumped in _text_processes(text) if dumped.threads]


def _text_processes(text: str) -> Iterator[Dumped]:
    pid: int | None = None
    rank: int | None = None
    threads: list[tuple[str, bool, list[Frame]]] = []
    count = 0
    for line in text.splitlines():
        if (process := _PROCESS.match(line)) is not None and count < MAX_PROCESSES:
            if threads:
                yield Dumped(pid, rank, _stacks(threads))
            count += 1
            named = _RANK.search(process[2])
            pid, rank, threads = int(process[1]), int(named[1]) if named else None, []
        elif (thread := _THREAD.match(line)) is not None and len(threads) < MAX_THREADS:
            threads.append(((thread[2] or "thread")[:MAX_NAME], "gil" in thread[1], []))
        elif threads and (frame := _FRAME.match(line)) is not None and len(threads[-1][2]) < MAX_FRAMES:
            threads[-1][2].append(Frame(frame[1].strip()[:MAX_NAME], frame[2], int(frame[3] or 0)))
    if threads:
        yield Dumped(pid, rank, _stacks(threads))


def _stacks(threads: Iterable[tuple[str, bool, list[Frame]]]) -> tuple[Stack, ...]:
    return _main_first(tuple(Stack(name, tuple(frames), holds_gil=gil) for name, gil, frames in threads if frames))


def _main_first(threads: tuple[Stack, ...]) -> tuple[Stack, ...]:
    return tuple(sorted(threads, key=lambda stack: not stack.thread.startswith("MainThread")))


def _json_threads(text: str) -> Iterator[Stack]:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return
    for entry in raw[:MAX_THREADS] if isinstance(raw, list) else ():
        frames = entry.get("frames") if isinstance(entry, dict) else None
        kept = [frame for each in (frames if isinstance(frames, list) else [])[:MAX_FRAMES] if (frame := _json_frame(each))]
        if kept:
            name = entry.get("thread_name")
            gil = entry.get("owns_gil")
            label = name if isinstance(name, str) and name else "thread"
            yield Stack(label[:MAX_NAME], tuple(kept), gil if isinstance(gil, bool) else None)


def _json_frame(raw: Any) -> Frame | None:
    if not isinstance(raw, dict):
        return None
    name, file, line = raw.get("name"), raw.get("filename"), raw.get("line")
    if not isinstance(name, str) or not isinstance(file, str):
        return None
    return Frame(name[:MAX_NAME], file[:1000], line if isinstance(line, int) and 0 <= line < 1 << 31 else 0)


def traces(stacks: Iterable[RankStacks], world: int) -> tuple[Trace, ...]:
    """What the stacks tell of each rank: the call of torch.distributed that its main thread is in, if any.

    The call gets number 1 in the default group: a stack knows neither numbers nor groups.
    """
    group = Group("0", tuple(range(world)), "default_pg")
    return tuple(_trace(each, group) for each in stacks)


def _trace(stacks: RankStacks, group: Group) -> Trace:
    call = next((found for thread in stacks.threads[:1] if (found := distributed_call(thread.frames))), None)
    if call is None:
        return Trace(stacks.rank, groups={group.name: group}, world_size=len(group.ranks))
    zeros = [array("q", [0]) for _ in range(6)]
    call_, group_, thread, entered, returned, completed = zeros
    table = OperationTable((call,), (group.name,), call_, group_, array("q", [1]), thread, entered, returned, completed)
    return Trace(stacks.rank, table, groups={group.name: group}, world_size=len(group.ranks))


def distributed_call(frames: tuple[Frame, ...]) -> Call | None:
    """The call of torch.distributed that a stack is in; a backward counts as one, whatever operation of it is waited for."""
    user = [(frame.function, frame.file, frame.line) for frame in frames]
    outer = outermost_call(frames)
    if outer is not None:
        op = frames[outer].function.rpartition(".")[2]
        kind = Kind.P2P if op.startswith(P2P) else Kind.GROUP if op in GROUP_CALLS else Kind.COLLECTIVE
        return Call(op=op, kind=kind, site=call_site(user))
    if frames and any(frame.function in _BACKWARD and "/torch/" in frame.file for frame in frames[:3]):
        return Call(op=BACKWARD, kind=Kind.COLLECTIVE, site=call_site(user))
    return None


def outermost_call(frames: Sequence[Frame]) -> int | None:
    """Which frame is the function of torch.distributed that the user called; None if the stack is in none."""
    calls = (
        index
        for index, frame in enumerate(frames)
        if frame.file.endswith("distributed_c10d.py") and _CALLS.match(frame.function.rpartition(".")[2])
    )
    return max(calls, default=None)
