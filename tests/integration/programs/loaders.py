"""Reads from data loaders of every kind; forked and spawned workers try to write where only the rank may."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - it registers the backend "fake"
from torch.utils.data import DataLoader, Dataset, IterableDataset

import desync

unreal: dist.ProcessGroup
"""A group that no thread serves: it works in a forked child too."""


class Numbers(Dataset[torch.Tensor]):
    """Ten numbers; its workers do what only the rank's journal should show of the rank."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None:
            desync.mark("worker", index)
            torch.ones(1, requires_grad=True).sum().backward()
            Path(sys.argv[1], f"worker-{os.getpid()}").touch()
        return torch.tensor(index)


class Stream(IterableDataset[int]):
    """Five numbers without a length."""

    def __iter__(self) -> itertools.chain[int]:
        return itertools.chain(range(5))


def read(name: str, loader: DataLoader[torch.Tensor], passes: int = 1) -> None:
    for number in range(passes):
        desync.mark(name, number)
        for _ in loader:  # @read
            pass


def fork_children() -> None:
    """A child that uses what the recorder hooks and ends by os._exit, and one that is ended by SIGTERM, as workers are."""
    if os.fork() == 0:
        desync.mark("child", 1)
        dist.all_reduce(torch.ones(1), group=unreal)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    ready, say_ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(say_ready, b"x")
        signal.pause()
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGTERM


def main() -> None:
    global unreal
    dist.init_process_group("gloo")
    unreal = dist.new_group(backend="fake")
    read("plain", DataLoader(Numbers(), batch_size=4), passes=2)
    read("stream", DataLoader(Stream(), batch_size=2))
    read("forked", DataLoader(Numbers(), batch_size=5, num_workers=2, multiprocessing_context="fork"))
    persistent = DataLoader(Numbers(), batch_size=3, num_workers=1, persistent_workers=True, multiprocessing_context="spawn")
    read("spawned", persistent, passes=2)
    iterator = iter(DataLoader(Numbers(), batch_size=1))
    next(iterator)
    next(iterator)  # @left
    fork_children()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
