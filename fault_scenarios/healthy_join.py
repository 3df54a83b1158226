"""Healthy: the ranks have different numbers of batches, and ``Join`` lets those that are done follow the others.

Run it with ``torchrun --nproc-per-node 3 fault_scenarios/healthy_join.py``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import join_job, parser


def train(device: torch.device) -> None:
    """Train for one epoch of a length of its own on each rank."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(32 + 16 * dist.get_rank(), 20)
    with Join([model]):
        for (batch,) in DataLoader(TensorDataset(inputs), batch_size=8):
            optimizer.zero_grad()
            model(batch.to(device)).square().mean().backward()
            optimizer.step()
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
