"""Silent pipe: one rank reads its labels from a program that says nothing any more.

The labels come through a pipe. Whoever writes for rank 1 has stopped in the middle, and keeps the pipe open.

    torchrun --nproc-per-node 3 fault_scenarios/silent_pipe.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def labels_of(rank: int, steps: int) -> int:
    """The end of a pipe to read from, in which there is a byte for each step; for rank 1 there are too few."""
    reading, writing = os.pipe()
    os.write(writing, bytes(4 if rank == 1 else steps))
    return reading


def read_label(labels: int) -> Tensor:
    """The next label."""
    return torch.tensor(float(os.read(labels, 1)[0]))


def train(device: torch.device, steps: int) -> None:
    """Train on as many labels as there are steps."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = labels_of(dist.get_rank(), steps)
    for _ in range(steps):
        label = read_label(labels).to(device)
        optimizer.zero_grad()
        (model(torch.randn(8, 20, device=device)) - label).square().mean().backward()
        optimizer.step()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device, steps=8)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
