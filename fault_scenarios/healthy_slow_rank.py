"""Healthy: one rank is slow, but it comes.

Rank 1 prepares one of its batches for three seconds of honest work while the other waits in backward. That is no hang.

    torchrun --nproc-per-node 2 fault_scenarios/healthy_slow_rank.py
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def prepare(batch: Tensor, seconds: float) -> Tensor:
    """Work on a batch for so long."""
    until = time.monotonic() + seconds
    mixed = batch
    while time.monotonic() < until:
        mixed = mixed.roll(1, dims=1).sort(dim=0).values
    return mixed


def train(device: torch.device, batches: int, slow_s: float) -> None:
    """Train for one epoch."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(batches):
        slow = dist.get_rank() == 1 and number == batches // 2
        batch = prepare(torch.randn(64, 20, device=device), seconds=slow_s if slow else 0.01)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def main() -> None:
    """Join the job, train, leave it."""
    options = parser(__doc__)
    options.add_argument("--slow-s", type=float, default=3, help="seconds that the slow batch takes (default: %(default)s)")
    arguments = options.parse_args()
    device = join_job(arguments.timeout_s)
    train(device, batches=20, slow_s=arguments.slow_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
