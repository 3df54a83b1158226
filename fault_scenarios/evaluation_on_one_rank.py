"""Evaluation on one rank: rank 0 evaluates the DDP model, whose forward broadcasts the buffers of batch norm.

The module inside (``model.module``) would need no other rank. Through DDP, rank 0's second forward broadcasts buffers while
the others are already in the next epoch's backward.

    torchrun --nproc-per-node 3 fault_scenarios/evaluation_on_one_rank.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def evaluate(model: nn.Module, device: torch.device) -> float:
    """Mean output over some batches."""
    model.eval()
    outputs = []
    for _ in range(4):
        outputs.append(model(torch.randn(8, 20, device=device)).mean().item())
    model.train()
    return sum(outputs) / len(outputs)


def train(device: torch.device) -> None:
    """Train for some epochs; rank 0 evaluates after each."""
    network = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 20, device=device)).square().mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {evaluate(model, device):.3f}", flush=True)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
