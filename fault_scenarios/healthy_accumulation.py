"""Healthy: gradients are accumulated over several batches, and all ranks leave out the same synchronisations.

Run it with ``torchrun --nproc-per-node 2 fault_scenarios/healthy_accumulation.py``.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common import join_job, parser


def train(device: torch.device, epochs: int, accumulate: int) -> None:
    """Train with one optimizer step, and one synchronisation, for every ``accumulate`` batches."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(448, 20, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for number, (batch, targets) in enumerate(loader, start=1):
            last = number % accumulate == 0 or number == len(loader)
            with nullcontext() if last else model.no_sync():
                loss = nn.functional.mse_loss(model(batch.to(device)), targets.to(device))
                (loss / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


def main() -> None:
    """Join the job, train, leave it."""
    options = parser(__doc__)
    options.add_argument("--accumulate", type=int, default=4, help="batches for each optimizer step (default: %(default)s)")
    arguments = options.parse_args()
    device = join_job(arguments.timeout_s)
    train(device, epochs=3, accumulate=arguments.accumulate)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
