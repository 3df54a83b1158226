"""Held exception: one rank raises, and a ``finally`` block keeps the exception from being seen.

Rank 1's fourth batch cannot be read. Before the error can be printed, the ``finally`` block meets the other ranks at a
barrier, which they do not reach: they wait for rank 1's gradients.

    torchrun --nproc-per-node 3 fault_scenarios/held_exception.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def read_batch(rank: int, number: int) -> Tensor:
    """One batch; rank 1's fourth is not as it should be."""
    if (rank, number) == (1, 3):
        raise ValueError(f"batch {number} has 19 columns instead of 20")
    return torch.randn(8, 20)


def train(device: torch.device) -> None:
    """Train for some batches; all ranks meet at the end."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        for number in range(8):
            inputs = read_batch(dist.get_rank(), number).to(device)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    finally:
        dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
