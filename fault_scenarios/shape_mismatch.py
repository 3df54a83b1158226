"""Shape mismatch: the ranks add up tensors whose length depends on each rank's data.

``torch.bincount`` without ``minlength`` ends at the highest class that it has seen. One of rank 3's batches has only classes
below 60, so it adds 60 numbers where the others add 100. On gloo the rank that receives more than it has room for aborts.

    torchrun --nproc-per-node 4 fault_scenarios/shape_mismatch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser

CLASSES = 100


def read_labels(rank: int, batch: int) -> Tensor:
    """The labels of one batch: every class twice, but no high ones in rank 3's sixth batch."""
    return torch.arange(60 if (rank, batch) == (3, 5) else CLASSES).repeat(2)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    total = torch.zeros(CLASSES, dtype=torch.int64, device=device)
    for batch in range(8):
        counts = torch.bincount(read_labels(dist.get_rank(), batch).to(device))
        dist.all_reduce(counts)
        total += counts
    if dist.get_rank() == 0:
        print(f"the most frequent class has {total.max().item()} examples", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
