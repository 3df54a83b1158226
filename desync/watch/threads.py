"""What the kernel says of a process's main thread, without stopping it: how much it ran, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from desync.model import Frame

MAX_MAPS = 8 << 20
"""So much is read of the list of what a process has mapped."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How much a thread has run since it began (proc(5), schedstat)."""

    ran_ns: int
    queued_ns: int
    """Time in which it would have run if a core had been free."""
    turns: int
    """How many times it was given a core."""


def main_clock(pid: int, proc: Path = Path("/proc")) -> Clock | None:
    """The clock of a process's main thread; None if the kernel keeps none, or the process is gone."""
    try:
        ran, queued, turns = (proc / f"{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()
        return Clock(int(ran), int(queued), int(turns))
    except (OSError, ValueError):
        return None


def share(before: Clock, after: Clock, window_ns: int) -> float:
    """The part of the window in which the thread ran, or would have."""
    return (after.ran_ns - before.ran_ns + after.queued_ns - before.queued_ns) / max(window_ns, 1)


_FUNCTIONS = (
    ("queue.py", "put", "waits for room in a full queue"),
    ("queue.py", "get", "waits for something in an empty queue"),
    ("threading.py", "join", "waits for another thread"),
    ("futures/_base.py", "result", "waits for the result of a future"),
)
"""What a function of the standard library among the innermost frames tells; asked first."""
_FRAMES = (
    ("torch/utils/data/dataloader.py", "waits for its data loader"),
    ("multiprocessing/connection.py", "waits for another process"),
    ("multiprocessing/queues.py", "waits for another process"),
    ("subprocess.py", "waits for a program that it has started"),
    ("socket.py", "waits for the network"),
    ("ssl.py", "waits for the network"),
    ("queue.py", "waits for another thread"),
    ("threading.py", "waits for another thread or a lock"),
)
"""What the innermost frames tell, in the order in which it is asked."""
_KERNEL = (
    ("nanosleep", "sleeps"),
    ("flock", "waits for a lock on a file"),
    ("locks_lock", "waits for a lock on a file"),
    ("futex", "waits for a lock or another thread"),
    ("do_wait", "waits for a process that it has started"),
    ("pipe", "waits for a pipe"),
    ("wait_for_partner", "waits for a pipe"),
    ("fifo", "waits for a pipe"),
    ("tty", "waits for the terminal"),
    ("skb", "waits for the network"),
    ("nfs", "waits for a network file system"),
    ("rpc", "waits for a network file system"),
    ("poll", "waits for input"),
    ("select", "waits for input"),
)
"""What the name of the kernel's function tells."""
_STATES = {
    "stopped": "is stopped: somebody sent SIGSTOP, or a debugger holds it",
    "tracing-stop": "is stopped: a debugger holds it",
    "disk-sleep": "waits for a disk or a network file system",
}
STOPPED = ("stopped", "tracing-stop")
"""States of a process that somebody has stopped."""
INNERMOST = 6
"""So many innermost frames are looked at."""


def waits_for(pid: int, state: str | None, frames: Sequence[Frame], proc: Path = Path("/proc")) -> str | None:
    """What a main thread that stands still waits for; None if nothing tells."""
    if state in _STATES:
        return _STATES[state]
    inside = [(f"/{frame.file}", frame.function.rpartition(".")[2]) for frame in frames[:INNERMOST]]
    for end, function, words in _FUNCTIONS:
        if any(file.endswith(f"/{end}") and name == function for file, name in inside):
            return words
    for end, words in _FRAMES:
        if any(f"/{frame.file}".endswith(f"/{end}") for frame in frames[:INNERMOST]):
            return words
    try:
        where = (proc / f"{pid}/wchan").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return next((words for part, words in _KERNEL if part in where), None)


def has_process_group(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has made a process group: by the names that torch gives to the threads of its backends."""
    names = (task / "comm" for task in _tasks(pid, proc))
    return any(_text(name).startswith(_GROUP_THREADS) for name in names)


_GROUP_THREADS = ("pt_gloo", "gloo_", "pt_nccl", "NCCL ", "pt_mpi", "pt_xccl", "pt_ucc", "pt_tcpstore")
MAX_TASKS = 4096


def _tasks(pid: int, proc: Path) -> list[Path]:
    try:
        return sorted((proc / f"{pid}/task").iterdir())[:MAX_TASKS]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def uses_gpu(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a GPU's device open in its memory."""
    try:
        with (proc / f"{pid}/maps").open("rb") as maps:
            mapped = maps.read(MAX_MAPS)
    except OSError:
        return False
    return any(device in mapped for device in (b"/dev/nvidia", b"/dev/kfd", b"/dev/dri/"))
