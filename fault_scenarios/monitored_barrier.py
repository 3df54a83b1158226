"""Monitored barrier: one rank never reaches it, because its writer waits for room in a full queue.

``monitored_barrier`` would name rank 1 when its time is over; it could not say what rank 1 is doing instead.

    torchrun --nproc-per-node 3 fault_scenarios/monitored_barrier.py
"""

from __future__ import annotations

import queue
from datetime import timedelta

import torch
import torch.distributed as dist

from common import join_job, parser


def write_results(rank: int) -> None:
    """Hand this rank's results to the writer; rank 1's writer has ended, and its queue is full."""
    results: queue.Queue[int] = queue.Queue(maxsize=4)
    for result in range(8 if rank == 1 else 4):
        results.put(result)


def train(device: torch.device) -> None:
    """Some rounds of work; all ranks meet when the results are written."""
    values = torch.ones(16, device=device)
    for _ in range(4):
        dist.all_reduce(values)
    write_results(dist.get_rank())
    dist.monitored_barrier(timeout=timedelta(seconds=120))


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
