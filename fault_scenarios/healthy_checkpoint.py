"""Healthy: rank 0 writes checkpoints that need no other rank, and nobody waits for it.

Run it with ``torchrun --nproc-per-node 3 fault_scenarios/healthy_checkpoint.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def train(device: torch.device, folder: str) -> None:
    """Train, with a checkpoint of rank 0 after each epoch."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(4):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 20, device=device)).square().mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), Path(folder) / f"epoch-{epoch}.pt")


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    with tempfile.TemporaryDirectory() as folder:
        train(device, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
