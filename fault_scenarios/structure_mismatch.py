"""Structure mismatch: one rank builds another model than the others.

Rank 1's configuration asks for a layer more. DDP compares the models when it wraps them, and raises on all ranks.

    torchrun --nproc-per-node 3 fault_scenarios/structure_mismatch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def build(rank: int) -> nn.Module:
    """The model, with as many layers as this rank's configuration asks for."""
    layers = 3 if rank == 1 else 2
    return nn.Sequential(*(nn.Linear(20, 20) for _ in range(layers)))


def train(device: torch.device) -> None:
    """Train for some batches."""
    model = DistributedDataParallel(build(dist.get_rank()).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 20, device=device)).square().mean().backward()
        optimizer.step()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
