"""Healthy: loaders with worker processes, which live shorter than the rank that started them.

Run it with ``torchrun --nproc-per-node 2 fault_scenarios/healthy_workers.py``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common import join_job, parser


def train(device: torch.device) -> None:
    """Some epochs; the workers are started anew for each."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 20, generator=torch.Generator().manual_seed(0)))
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs.to(device)).square().mean().backward()
            optimizer.step()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
