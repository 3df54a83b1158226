"""Healthy: rank 0 validates for some seconds, on the module inside DDP, while the others wait for it.

Run it with ``torchrun --nproc-per-node 3 fault_scenarios/healthy_validation.py``.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def validate(network: nn.Module, device: torch.device, seconds: float) -> float:
    """Mean output over as many batches as fit into the time."""
    network.eval()
    outputs = []
    end = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end:
            outputs.append(network(torch.randn(256, 20, device=device)).mean().item())
    network.train()
    return sum(outputs) / len(outputs)


def train(device: torch.device) -> None:
    """Train for some epochs; rank 0 validates after each."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 20, device=device)).square().mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {validate(model.module, device, seconds=3):.3f}", flush=True)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
