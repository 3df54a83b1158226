"""Healthy in the end: a rank raises in the first attempt, and torchrun starts all ranks once more.

The agent's store outlives the attempt, so each attempt keeps its keys under a prefix of its own.

    torchrun --nproc-per-node 2 --max-restarts 1 fault_scenarios/healthy_restart.py
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from common import parser


def join_attempt(timeout_s: float) -> int:
    """Join the job as it is in this attempt; returns the number of the attempt, from 0."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    timeout = timedelta(seconds=timeout_s)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    server = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
    store = dist.TCPStore(address, port, world_size=size, is_master=server, timeout=timeout)
    dist.init_process_group("gloo", store=dist.PrefixStore(f"attempt-{attempt}", store), rank=rank, world_size=size)
    return attempt


def train(attempt: int) -> None:
    """Some sums; the machine fails rank 1 in the first attempt."""
    values = torch.ones(16)
    for step in range(8):
        if (dist.get_rank(), attempt, step) == (1, 0, 4):
            raise OSError("the data server does not answer")
        dist.all_reduce(values)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    train(join_attempt(arguments.timeout_s))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
