"""Dtype mismatch: one rank adds whole numbers where the others add fractions; gloo adds up the bits.

Rank 2 counts without weights, so its counts are int32. Nothing stops the job: every rank gets a sum that means nothing, and
the program ends with status 0.

    torchrun --nproc-per-node 3 fault_scenarios/dtype_mismatch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def counts_of(rank: int, batch: int, device: torch.device) -> Tensor:
    """How often each class occurs, weighted unless there are no weights."""
    labels = torch.arange(100, device=device) % 10
    weights = None if (rank, batch) == (2, 4) else torch.full((100,), 0.5, device=device)
    counts = torch.bincount(labels, weights)
    return counts.int() if weights is None else counts.float()


def train(device: torch.device) -> None:
    """Add up the classes of some batches over all ranks."""
    total = torch.zeros(10, device=device)
    for batch in range(8):
        counts = counts_of(dist.get_rank(), batch, device)
        dist.all_reduce(counts)
        total += counts
    if dist.get_rank() == 0:
        print(f"class 0 has a weight of {total[0].item():g}", flush=True)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
