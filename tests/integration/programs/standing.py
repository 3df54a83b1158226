"""Jobs to be looked at from outside while they run: ``standing.py PLAY FOLDER``.

Every rank makes a file ``ready.RANK`` in FOLDER before it goes where it stays; what goes on ends when a file ``stop`` is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(sys.argv[2])
SPAWNED = 2


def ready() -> None:
    (FOLDER / f"ready.{dist.get_rank()}").touch()


def stay() -> None:
    time.sleep(600)  # @stay


def stuck() -> None:
    """Rank 2 stays where it is, the others wait for it."""
    ready()
    if dist.get_rank() == 2:
        stay()
    dist.all_reduce(torch.ones(3))  # @all_reduce


def begun_before() -> None:
    """The same, where the others wait for an operation that they began before."""
    work = dist.all_reduce(torch.ones(3), async_op=True) if dist.get_rank() != 2 else None
    ready()
    if work is None:
        stay()
    work.wait()  # @wait


def other_call() -> None:
    """Rank 1 has left the loop, the others are in their backward."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(3):
        if step == 2:
            ready()
        if step == 2 and dist.get_rank() == 1:
            break
        model(torch.ones(2, 4)).sum().backward()  # @backward
    dist.barrier()  # @barrier


def train() -> None:
    """A training that is well."""
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stop = torch.zeros(1)
    ready()
    while not stop.item():
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        stop[0] = (FOLDER / "stop").exists()
        dist.all_reduce(stop, dist.ReduceOp.MAX)


def left() -> None:
    """Rank 1 ends without a word."""
    ready()
    if dist.get_rank() == 1:
        while not (FOLDER / "stop").exists():
            time.sleep(0.05)
        os._exit(0)
    time.sleep(600)


def spawned(index: int) -> None:
    """One of the ranks that this program has started itself."""
    dist.init_process_group("gloo", f"file://{FOLDER}/store", rank=index, world_size=SPAWNED)
    ready()
    if index == 1:
        stay()
    dist.barrier()  # @spawned


def main() -> None:
    if sys.argv[1] == "spawned":
        mp.spawn(spawned, nprocs=SPAWNED)
        return
    dist.init_process_group("gloo")
    {"stuck": stuck, "begun_before": begun_before, "other_call": other_call, "train": train, "left": left}[sys.argv[1]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
