"""no_sync on one rank: one rank accumulates gradients over two batches, the others over one.

Rank 2 was started with a smaller batch and makes up for it with ``no_sync``. It reduces its gradients half as often as the
others, and is at the barrier after the epoch when they still wait for it.

    torchrun --nproc-per-node 3 fault_scenarios/no_sync_on_one_rank.py
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import join_job, parser

ACCUMULATE = (1, 1, 2)
"""Batches for each optimizer step of each rank."""


def train(device: torch.device) -> None:
    """Train for one epoch; all ranks meet at its end."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    accumulate = ACCUMULATE[dist.get_rank() % len(ACCUMULATE)]
    for number, (inputs,) in enumerate(DataLoader(TensorDataset(torch.randn(64, 20)), batch_size=8), start=1):
        last = number % accumulate == 0
        with nullcontext() if last else model.no_sync():
            model(inputs.to(device)).square().mean().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
