"""Held GIL: one rank calls into a library that waits for ever and keeps Python's lock.

No other thread of rank 1 can run any Python then, so nothing inside the process can report it.

    torchrun --nproc-per-node 3 fault_scenarios/held_gil.py
"""

from __future__ import annotations

import ctypes

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def read_batch(rank: int, number: int) -> Tensor:
    """One batch, through a foreign library; for rank 1's fourth the library waits for a signal that never comes."""
    if (rank, number) == (1, 3):
        ctypes.PyDLL(None).pause()  # PyDLL: the GIL is not let go of
    return torch.randn(8, 20)


def train(device: torch.device) -> None:
    """Train for some batches."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(8):
        inputs = read_batch(dist.get_rank(), number).to(device)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
