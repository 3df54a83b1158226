"""Batch without partner: a ring exchange from which one rank leaves out a neighbour.

Each rank swaps its border with both neighbours in one ``batch_isend_irecv``. In the fourth turn rank 3 finds its border behind
the end empty and leaves that neighbour out; rank 0 waits for it.

    torchrun --nproc-per-node 4 fault_scenarios/batch_without_partner.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def neighbours(rank: int, size: int, turn: int) -> list[int]:
    """The ranks to swap borders with: both sides of the ring."""
    if (rank, turn) == (3, 3):
        return [rank - 1]
    return [(rank - 1) % size, (rank + 1) % size]


def swap_borders(border: Tensor, turn: int) -> None:
    """Send this rank's border to its neighbours and take theirs."""
    operations = []
    for other in neighbours(dist.get_rank(), dist.get_world_size(), turn):
        operations.append(dist.P2POp(dist.isend, border, other))
        operations.append(dist.P2POp(dist.irecv, torch.empty_like(border), other))
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def train(device: torch.device) -> None:
    """Some turns of the simulation."""
    for turn in range(6):
        swap_borders(torch.randn(64, device=device), turn)
        dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
