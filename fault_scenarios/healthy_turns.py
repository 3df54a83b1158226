"""Healthy: two ranks give in turn what they have and take what the other gives, from lines that are never the same.

All operations are alike, and what one rank calls now the other calls a moment later; that is what is meant.  Rank 2 only
takes.  Run it with ``torchrun --nproc-per-node 3 fault_scenarios/healthy_turns.py``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def give(values: Tensor) -> Tensor:
    """Let the others have this rank's values."""
    dist.all_reduce(values)
    return values


def take(values: Tensor) -> Tensor:
    """Have the values that another rank gives."""
    taken = torch.zeros_like(values)
    dist.all_reduce(taken)
    return taken


def train(device: torch.device) -> None:
    """Some rounds; in each of them both ranks give once."""
    rank = dist.get_rank()
    for number in range(6):
        values = torch.full((4,), float(number + rank), device=device)
        taken = [(give if rank == turn else take)(values) for turn in (0, 1)]
        if taken[0][0] != number or taken[1][0] != number + 1:
            raise ValueError("the values were mixed up")
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
