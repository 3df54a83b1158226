"""Abandoned lock: one rank waits for a lock whose owner has died.

A thread writes checkpoints and takes a lock for that. On rank 1 the disk is full: the thread dies without giving the lock back,
and the training loop waits for it before the next step.

    torchrun --nproc-per-node 3 fault_scenarios/abandoned_lock.py
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser

weights = threading.Lock()
"""Held while the weights must not change."""


def write(step: int) -> None:
    """Write a checkpoint, or fail to."""
    weights.acquire()
    if (dist.get_rank(), step) == (1, 3):
        raise OSError("no space left on device")
    weights.release()


def train(device: torch.device) -> None:
    """Train, with a checkpoint after each step."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        optimizer.zero_grad()
        model(torch.randn(8, 20, device=device)).square().mean().backward()
        with weights:
            optimizer.step()
        writer = threading.Thread(target=write, args=(step,), name="checkpoints")
        writer.start()
        writer.join()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
