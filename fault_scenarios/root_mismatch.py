"""Root mismatch: the ranks do not agree on the rank that broadcasts.

Each rank looks up which rank holds the best model, in scores of which its own copy may be old. Rank 3 thinks that it is rank
3 itself; all others expect rank 1's parameters.

    torchrun --nproc-per-node 4 fault_scenarios/root_mismatch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser

SCORES = (0.71, 0.83, 0.79, 0.68)


def best_rank(rank: int, round_: int) -> int:
    """The rank with the best score; in the fourth round rank 3 has seen one of its own that nobody else knows."""
    scores = list(SCORES)
    if (rank, round_) == (3, 3):
        scores[3] = 0.91
    return max(range(len(scores)), key=scores.__getitem__)


def train(device: torch.device) -> None:
    """Some rounds, in each of which the best model is handed to all."""
    weights = torch.full((1000,), float(dist.get_rank()), device=device)
    for round_ in range(6):
        dist.broadcast(weights, src=best_rank(dist.get_rank(), round_))
        dist.all_reduce(weights)
        weights /= dist.get_world_size()
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
