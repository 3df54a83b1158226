"""Starts its own ranks: only when init_process_group is called does a process know which one it is."""

from __future__ import annotations

import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def address(name: str) -> str:
    return f"file://{sys.argv[2]}/{name}"


def one_raises(rank: int) -> None:
    dist.init_process_group("gloo", address("spawn"), timedelta(seconds=60), RANKS, rank)  # @init
    dist.all_reduce(torch.ones(3))  # @all_reduce
    if rank == 1:
        raise ValueError("the second rank gives up")  # @raise
    signal.pause()  # @pause


def becomes_a_rank(rank: int) -> None:
    dist.init_process_group("gloo", address("fork"), rank=rank, world_size=RANKS)
    dist.all_reduce(torch.ones(5))  # @child
    dist.destroy_process_group()
    if rank == 1:
        raise LookupError("printed by multiprocessing itself")  # @process


def main() -> None:
    if sys.argv[1] == "spawn":
        mp.spawn(one_raises, nprocs=RANKS)
    else:
        dist.init_process_group("gloo", address("parent"), rank=0, world_size=1)
        dist.all_reduce(torch.ones(4))  # @parent
        dist.destroy_process_group()
        context = mp.get_context("fork")
        children = [context.Process(target=becomes_a_rank, args=(rank,)) for rank in range(RANKS)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 1]


if __name__ == "__main__":
    main()
