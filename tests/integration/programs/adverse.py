"""What jobs do in the worst moments: signals, threads and forks in the middle of recording; and what it keeps alive."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - it registers the backend "fake"

DEADLINE_S = 60
SIGNALS = 150
FORKS = 10
THREADS = 4
PER_THREAD = 1000
OPERATIONS = int(os.environ.get("OPERATIONS", "20000"))


def group_of(name: str) -> dist.ProcessGroup:
    """A group that needs no other rank: every operation is over at once."""
    return dist.new_group([0, 1], backend="fake", group_desc=name)


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true; another thread may still have to let go of something."""
    end = time.monotonic() + DEADLINE_S
    while not condition() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return condition()


def tensors_are_freed(rank: int) -> dict[str, bool]:
    freed = {}
    tensor = torch.ones(1000)
    alive = weakref.ref(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    del tensor, work
    freed["waited"] = eventually(lambda: alive() is None)
    tensor = torch.ones(1000)
    alive = weakref.ref(tensor)
    dist.all_reduce(tensor, async_op=True)
    del tensor
    freed["never waited"] = eventually(lambda: alive() is None)
    tensor = torch.ones(1000)
    alive = weakref.ref(tensor)
    work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
    work.wait()
    del tensor, work
    freed["p2p"] = eventually(lambda: alive() is None)
    freed["forgotten"] = handles_without_a_wait_are_let_go(rank)
    return freed


def handles_without_a_wait_are_let_go(rank: int) -> bool:
    """Sends on which nobody waited: the next transfers, one for each, make the recorder let go of them."""
    tensors = [torch.ones(1000) for _ in range(20)]
    alive = [weakref.ref(tensor) for tensor in tensors]
    works = [dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0) for tensor in tensors]
    if rank == 1:
        for work in works:
            work.wait()
    dist.barrier()
    tensors.clear()
    works.clear()
    work = None
    for _ in range(21):
        if rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
    return eventually(lambda: not any(tensor() is not None for tensor in alive))


def signals_that_communicate(main: dist.ProcessGroup, handlers: dist.ProcessGroup) -> dict[str, int]:
    """Every operation has a new shape, so that signals arrive in the middle of interning."""
    calls = 0

    def handler(*_: object) -> None:
        nonlocal calls
        calls += 1
        dist.all_reduce(torch.ones(calls), group=handlers)
        signal.setitimer(signal.ITIMER_REAL, 0.0003)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0003)
    operations = 0
    while calls < SIGNALS:
        operations += 1
        dist.all_reduce(torch.ones(operations), group=main)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {"main": operations, "handlers": calls}


def signals_that_raise(group: dist.ProcessGroup) -> dict[str, int]:
    """An exception of a handler reaches the program wherever it is raised, in the recorder too."""
    raised = caught = 0

    def handler(*_: object) -> None:
        nonlocal raised
        raised += 1
        raise TimeoutError

    signal.signal(signal.SIGALRM, handler)
    while caught < SIGNALS and raised < 10 * SIGNALS:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003)
            while True:
                dist.all_reduce(torch.ones(1 + caught), group=group)
        except TimeoutError:
            caught += 1
    return {"raised": raised, "caught": caught}


def threads(groups: list[dist.ProcessGroup]) -> None:
    def work(group: dist.ProcessGroup) -> None:
        for number in range(PER_THREAD):
            dist.all_reduce(torch.ones(1 + number % 100), group=group)

    started = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def forks_amid_interning(interning: dist.ProcessGroup, children: dist.ProcessGroup) -> list[int]:
    """Another thread holds the recorder's locks again and again while children are forked that need them."""
    stop = threading.Event()

    def intern() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            dist.all_reduce(torch.ones(number % 3000, 2), group=interning)

    thread = threading.Thread(target=intern)
    thread.start()
    statuses = []
    for number in range(FORKS):
        child = os.fork()
        if child == 0:
            dist.all_reduce(torch.ones(number + 1, 3), group=children)
            os._exit(6)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    stop.set()
    thread.join()
    return statuses


def memory_added(group: dist.ProcessGroup) -> dict[str, int]:
    """Bytes by which this process grows over equal operations, and over operations of which every tenth has a new shape."""
    process = psutil.Process()
    tensors = [torch.empty(0).expand(number, 0) for number in range(OPERATIONS // 10)]
    added = {}
    for part in ("warm", "equal", "different"):
        before = process.memory_info().rss
        for number in range(OPERATIONS):
            dist.all_reduce(tensors[number // 10] if part == "different" else tensors[0], group=group)
        added[part] = process.memory_info().rss - before
    return added


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    names = ("signals", "handlers", "raising", "interning", "children", "memory", *(f"thread {n}" for n in range(THREADS)))
    groups = {name: group_of(name) for name in names}
    result: dict[str, object] = {"freed": tensors_are_freed(rank)}
    if rank == 0:
        result["threads"] = threads([groups[f"thread {number}"] for number in range(THREADS)])
        result["signals"] = signals_that_communicate(groups["signals"], groups["handlers"])
        result["raising"] = signals_that_raise(groups["raising"])
        result["forks"] = forks_amid_interning(groups["interning"], groups["children"])
        result["memory"] = memory_added(groups["memory"])
        Path(sys.argv[1], "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
