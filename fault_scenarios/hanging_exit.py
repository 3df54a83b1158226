"""Hanging exit: the work is done, but one rank cannot end, because a thread of it waits for ever.

Rank 1's thread for writing was never told that nothing more comes. Python waits for it at the end of the program.

    torchrun --nproc-per-node 3 fault_scenarios/hanging_exit.py
"""

from __future__ import annotations

import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def write(lines: queue.Queue[str]) -> None:
    """Print what comes until there is nothing more."""
    while (line := lines.get()) != "":
        print(line, flush=True)


def train(device: torch.device) -> None:
    """Train for some batches, with a thread that writes the log."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=write, args=(lines,), name="writer").start()
    for batch in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 20, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        lines.put(f"rank {dist.get_rank()}, batch {batch}: {loss.item():.3f}")
    if dist.get_rank() != 1:
        lines.put("")


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
