"""Its second rank raises in the first attempt; the second attempt does its work."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def main() -> None:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    store, rank, size = next(dist.rendezvous("env://"))
    # The launcher keeps one store for all attempts: addresses of the last one must not be found in it.
    dist.init_process_group("gloo", store=dist.PrefixStore(f"attempt {attempt}", store), rank=rank, world_size=size)
    dist.all_reduce(torch.ones(2 + attempt))  # @all_reduce
    if attempt == 0 and rank == 1:
        raise RuntimeError("can't allocate memory: you tried to allocate 1 bytes")  # @raise
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
