"""Full queue: one rank hands its samples to a thread that has stopped taking them.

The queue has room for four. On rank 1 the thread that writes them has ended early, so the fifth never goes in.

    torchrun --nproc-per-node 3 fault_scenarios/full_queue.py
"""

from __future__ import annotations

import queue
import threading

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def write(samples: queue.Queue[Tensor], at_most: int) -> None:
    """Take so many samples."""
    for _ in range(at_most):
        samples.get()


def train(device: torch.device, steps: int) -> None:
    """Train, and hand a sample of each step to the writer."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples: queue.Queue[Tensor] = queue.Queue(maxsize=4)
    taken = 1 if dist.get_rank() == 1 else steps
    threading.Thread(target=write, args=(samples, taken)).start()
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = model(torch.randn(8, 20, device=device))
        outputs.square().mean().backward()
        optimizer.step()
        samples.put(outputs.detach())


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device, steps=12)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
