"""Two faults: one rank adds whole numbers to fractions and nobody notices; later another one waits for its data.

Rank 1 has no weights in its third batch, so its counts are int32, and gloo adds up the bits. Rank 2's reader holds its lock
when it needs it again, two batches later. The one has nothing to do with the other.

    torchrun --nproc-per-node 3 fault_scenarios/two_faults.py
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def read(lock: threading.Lock, rank: int, batch: int) -> Tensor:
    """One batch of labels; what is broken is read again."""
    with lock:
        if (rank, batch) == (2, 4):
            return read(lock, rank, batch - 1)
        return torch.arange(100) % 10


def counts_of(labels: Tensor, rank: int, batch: int) -> Tensor:
    """How often each class occurs, weighted unless there are no weights."""
    weights = None if (rank, batch) == (1, 2) else torch.full((100,), 0.5)
    counts = torch.bincount(labels, weights)
    return counts.int() if weights is None else counts.float()


def train(device: torch.device) -> None:
    """Add up the classes of some batches over all ranks."""
    rank, lock = dist.get_rank(), threading.Lock()
    for batch in range(8):
        counts = counts_of(read(lock, rank, batch), rank, batch).to(device)
        dist.all_reduce(counts)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
