"""Healthy: all_to_all with other splits on every rank, and objects of other sizes, as they are allowed.

Run it with ``torchrun --nproc-per-node 3 fault_scenarios/healthy_uneven_splits.py``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def exchange(rank: int, size: int, device: torch.device) -> Tensor:
    """Rank r sends r + 1 tokens to each other rank."""
    own = torch.ones(size * (rank + 1), 4, device=device)
    received = torch.empty(sum(range(1, size + 1)), 4, device=device)
    dist.all_to_all_single(received, own, list(range(1, size + 1)), [rank + 1] * size)
    return received


def train(device: torch.device) -> None:
    """Some rounds of both."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(6):
        total = exchange(rank, size, device).sum()
        dist.all_reduce(total)
        gathered: list[object] = [None] * size
        dist.all_gather_object(gathered, ["word"] * (1 + 50 * rank))


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
