"""Killed: the program is sound, but something outside ends one of its ranks with a signal.

Every rank says when it is in the middle of training. Kill one of them then, as the kernel does when memory runs out:

    torchrun --nproc-per-node 3 fault_scenarios/killed.py
    kill -KILL PID      # in another terminal, with the pid that a rank has printed
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def train(device: torch.device, steps: int) -> None:
    """Train slowly, and say so after a few steps."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 20, device=device)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
        if step == 5:
            print(f"rank {dist.get_rank()} is ready (pid {os.getpid()})", flush=True)


def main() -> None:
    """Run the scenario."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=5000, help="of 0.02 s each, if nobody ends a rank (default: %(default)s)")
    arguments = options.parse_args()
    device = join_job(arguments.timeout_s)
    train(device, arguments.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
