"""Healthy: a pipeline with warm-up, whose stages send and receive different numbers of times at any moment.

Each stage takes as many microbatches ahead as there are stages behind it, then one forward and one backward in turn.

    torchrun --nproc-per-node 3 fault_scenarios/healthy_pipeline.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser

MICROBATCHES, WIDTH = 6, 20


def forward(rank: int, last: int, device: torch.device) -> None:
    """Take one microbatch from the stage before and hand it on."""
    values = torch.randn(8, WIDTH, device=device)
    if rank > 0:
        dist.recv(values, src=rank - 1)
    if rank < last:
        dist.send(values.relu(), dst=rank + 1)


def backward(rank: int, last: int, device: torch.device) -> None:
    """Take one gradient from the stage behind and hand it back."""
    gradient = torch.ones(8, WIDTH, device=device)
    if rank < last:
        dist.recv(gradient, src=rank + 1)
    if rank > 0:
        dist.isend(gradient, dst=rank - 1).wait()


def train(device: torch.device) -> None:
    """Some batches, each in microbatches."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for _ in range(3):
        ahead = min(last - rank, MICROBATCHES)
        for _ in range(ahead):
            forward(rank, last, device)
        for _ in range(MICROBATCHES - ahead):
            forward(rank, last, device)
            backward(rank, last, device)
        for _ in range(ahead):
            backward(rank, last, device)
        dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
