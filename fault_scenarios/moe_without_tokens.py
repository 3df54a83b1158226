"""Mixture of experts: a rank whose tokens need no expert of another rank leaves the exchange out.

In the fourth step none of rank 2's tokens is routed elsewhere, and the all_to_all stands under ``if``. The others wait for
rank 2, which waits in the sum after it.

    torchrun --nproc-per-node 4 fault_scenarios/moe_without_tokens.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def routed_elsewhere(rank: int, step: int) -> int:
    """How many tokens the router sends to each other rank."""
    return 0 if (rank, step) == (2, 3) else 4


def exchange(tokens: Tensor) -> Tensor:
    """Give every rank the tokens of its experts."""
    received = torch.empty_like(tokens)
    dist.all_to_all_single(received, tokens)
    return received


def train(device: torch.device) -> None:
    """Some steps of one layer."""
    for step in range(6):
        tokens = torch.randn(dist.get_world_size() * 4, 8, device=device)
        if routed_elsewhere(dist.get_rank(), step):
            tokens = exchange(tokens)
        load = tokens.square().sum(dim=0)
        dist.all_reduce(load)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
