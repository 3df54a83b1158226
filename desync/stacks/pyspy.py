"""Stacks of running processes from outside, taken with py-spy.

Measured with py-spy 0.4.3 on torch 2.13 and two cores: Python frames of a rank take about 10 ms, of eight ranks at once 50 ms;
native frames take 0.6 s a rank (py-spy reads the symbols of torch's libraries each time), and 2.5 s for eight.  The process
stands still meanwhile.  So Python frames of all ranks come first, and native frames follow, in the caller's order, while time
remains.

Nothing here raises: a stack that cannot be had becomes a note.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from desync.model import Frame, RankStacks, Stack
from desync.stacks.variables import Variables, kept

SOURCE = "py-spy"
MAX_THREADS = 256
MAX_FRAMES = 512
MAX_NAME = 200
MAX_OUTPUT_BYTES = 16 << 20
"""Bounds on what is taken over from a stack: a deep recursion must not fill the report."""

LEAST_NATIVE_S = 0.1
"""With less time than this left, no further native stack is begun."""

_GONE = "its process was gone"
FORBIDDEN = "no right to trace it (ptrace); see `desync doctor`"
"""What is said of a process that the kernel does not let be looked into."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class TakenStacks:
    """Stacks of those ranks that could be had, sorted by rank, and why others could not."""

    stacks: tuple[RankStacks, ...] = ()
    notes: tuple[str, ...] = ()
    variables: Mapping[int, tuple[Variables, ...]] = field(default_factory=dict)
    """By rank, for each of its threads, where they were asked for."""


Taken = tuple[RankStacks, tuple[Variables, ...]]


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """py-spy gave no stack; the text says why."""


def take(pids: Mapping[int, int], limit_s: float, native: bool, *, variables: bool = False) -> TakenStacks:
    """Stacks of the processes ``pids`` (rank to pid), within about ``limit_s`` seconds.

    With ``native`` each rank's Python frames are joined by native ones as far as time allows, in the order of ``pids``.
    With ``variables`` come those few of which :mod:`desync.stacks.variables` speaks.
    """
    tool = find_pyspy()
    if tool is None:
        return TakenStacks(notes=("no stacks: py-spy was not found; install it beside desync (pip install py-spy)",))
    if not pids:
        return TakenStacks()
    deadline = time.monotonic() + limit_s
    mode = ["--locals"] if variables else []
    taken, problems = _take_all(tool, pids, deadline, mode)
    again = {rank: pids[rank] for rank, why in problems.items() if variables and why not in (_GONE, FORBIDDEN)}
    if again:  # a value that cannot be read must not cost the stack
        plain, still = _take_all(tool, again, deadline, [])
        taken |= plain
        problems = {rank: why for rank, why in (problems | still).items() if rank not in taken}
    notes = _grouped("no stack", problems)
    if native and taken:
        pending = {rank: pids[rank] for rank in pids if rank in taken}
        with_native, problems = _take_all(tool, pending, deadline, ["--native"])
        taken |= with_native
        notes += _grouped("no native frames", {rank: why for rank, why in problems.items() if why != _GONE})
    found = {rank: values for rank, (_, values) in taken.items()} if variables else {}
    return TakenStacks(tuple(taken[rank][0] for rank in sorted(taken)), notes, found)


def find_pyspy() -> str | None:
    """The py-spy of this environment, else the one on PATH; None if there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _take_all(tool: str, pids: Mapping[int, int], deadline: float, mode: list[str]) -> tuple[dict[int, Taken], dict[int, str]]:
    taken: dict[int, Taken] = {}
    problems: dict[int, str] = {}
    # Several at once cost each other little until the cores run out; what reads symbols wants a core of its own.
    workers = min(len(pids), max(2, os.cpu_count() or 1) if "--native" in mode else 16)
    with ThreadPoolExecutor(workers) as pool:
        waiting: dict[int, Future[Taken]] = {}
        for rank, pid in pids.items():
            try:
                waiting[rank] = pool.submit(_take_one, tool, rank, pid, deadline, mode)
            except RuntimeError as error:  # the limit of processes and threads is reached
                problems[rank] = f"py-spy cannot be started ({error})"
        for rank, future in waiting.items():
            try:
                taken[rank] = future.result()
            except _Refused as refusal:
                problems[rank] = str(refusal)
    return taken, problems


def _take_one(tool: str, rank: int, pid: int, deadline: float, mode: list[str]) -> Taken:
    left = deadline - time.monotonic()
    native = "--native" in mode
    if left < (LEAST_NATIVE_S if native else 0):
        raise _Refused("no time was left")
    stopped = _is_stopped(pid)
    if stopped and native:
        raise _Refused("its process is stopped")
    # py-spy cannot attach to a process that is stopped already, and need not stop it to read it.
    pause = ["--nonblocking"] if stopped else []
    taken_at = time.time_ns()
    output = _run([tool, "dump", "--pid", str(pid), "--json", *mode, *pause], pid, left, stopped)
    threads = _threads(output)
    if not threads:
        raise _Refused("py-spy saw no Python thread")
    stacks = RankStacks(rank=rank, source=SOURCE, time=taken_at, threads=tuple(stack for stack, _ in threads))
    return stacks, tuple(variables for _, variables in threads)


def _run(command: list[str], pid: int, limit_s: float, stopped_before: bool) -> bytes:
    try:
        process = subprocess.Popen(  # noqa: S603 - py-spy, with numbers as its only arguments
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise _Refused(f"py-spy cannot be started ({error.strerror})") from error
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        if not stopped_before:
            _let_go(pid)
        raise _Refused(f"py-spy was not done after {limit_s:.1f} s") from None
    if process.returncode != 0 or len(output) > MAX_OUTPUT_BYTES:
        raise _Refused(_reason(errors.decode("utf-8", "replace")))
    return output


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:
        return False


def _let_go(pid: int) -> None:
    """A tracer that is killed between attaching and waiting can leave its process stopped; never leave it so."""
    for _ in range(10):
        if _is_stopped(pid):
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                os.kill(pid, signal.SIGCONT)
            return
        time.sleep(0.01)


def _reason(errors: str) -> str:
    """One line for the reason that py-spy gave on standard error."""
    low = errors.lower()
    if "permission denied" in low or "operation not permitted" in low:
        return FORBIDDEN
    if "no such file or directory" in low or "no such process" in low:
        return _GONE
    first = next((line for line in errors.splitlines() if line.strip()), "no reason was given")
    return f"py-spy failed ({first.removeprefix('Error: ')[:MAX_NAME]})"


def _grouped(what: str, problems: Mapping[int, str]) -> tuple[str, ...]:
    """One note for all ranks with the same problem."""
    ranks_by_reason: dict[str, list[int]] = {}
    for rank, reason in sorted(problems.items()):
        ranks_by_reason.setdefault(reason, []).append(rank)
    return tuple(
        f"{what} of rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {reason}"
        for reason, ranks in ranks_by_reason.items()
    )


def parse(output: bytes) -> tuple[Stack, ...]:
    """The threads of ``py-spy dump --json``, main thread first; what does not fit is left out."""
    return tuple(stack for stack, _ in _threads(output))


def _threads(output: bytes) -> list[tuple[Stack, Variables]]:
    try:
        raw = json.loads(output)
    except (ValueError, RecursionError):
        return []
    if not isinstance(raw, list):
        return []
    threads = [thread for entry in raw[:MAX_THREADS] if (thread := _thread(entry)) is not None]
    return sorted(threads, key=lambda thread: thread[0].thread != "MainThread")


def _thread(entry: Any) -> tuple[Stack, Variables] | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("frames"), list):
        return None
    frames = [(frame, raw) for raw in entry["frames"][:MAX_FRAMES] if (frame := _frame(raw)) is not None]
    if not frames:
        return None
    name, gil = entry.get("thread_name"), entry.get("owns_gil")
    label = name if isinstance(name, str) and name else f"thread {entry.get('os_thread_id')}"
    holds = gil if isinstance(gil, bool) else None
    stack = Stack(thread=label[:MAX_NAME], frames=tuple(frame for frame, _ in frames), holds_gil=holds)
    return stack, tuple(kept(frame.file, raw.get("locals")) for frame, raw in frames)


def _frame(raw: Any) -> Frame | None:
    if not isinstance(raw, dict):
        return None
    name, file, line = raw.get("name"), raw.get("filename"), raw.get("line")
    if not isinstance(name, str) or not isinstance(file, str) or not isinstance(line, int):
        return None
    # A bare address says nothing, and differs between ranks that stand at the same place.
    if _ADDRESS.fullmatch(name):
        return None
    return Frame(function=short_name(name), file=file[:1000], line=line)


def short_name(name: str) -> str:
    """A C++ name without the arguments of its templates, which can fill screens; at most ``MAX_NAME`` characters."""
    if len(name) <= MAX_NAME and "<" not in name[1:]:
        return name
    kept: list[str] = []
    depth = 0
    for character in name[: 1 << 14]:
        opens = character == "<" and (depth or (kept and (kept[-1].isalnum() or kept[-1] == "_")))
        if opens:
            kept.extend("<…>" if depth == 0 else "")
            depth += 1
        elif depth:
            depth -= character == ">"
        else:
            kept.append(character)
    return "".join(kept)[:MAX_NAME]
