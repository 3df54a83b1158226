"""Exit in the middle: one rank finds nothing left to do and ends, with status 0.

Rank 2 has seen its share of examples and calls ``sys.exit``. That looks like success to torchrun; the others lose a peer in
the middle of a backward.

    torchrun --nproc-per-node 3 fault_scenarios/exit_in_the_middle.py
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def train(device: torch.device, batches: int) -> None:
    """Train until the share of examples is used up."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    share = 40 if dist.get_rank() == 2 else 80
    for number in range(batches):
        if number * 8 >= share:
            print(f"rank {dist.get_rank()} has seen its {share} examples", flush=True)
            sys.exit(0)
        optimizer.zero_grad()
        model(torch.randn(8, 20, device=device)).square().mean().backward()
        optimizer.step()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device, batches=10)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
