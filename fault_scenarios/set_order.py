"""Set order: a loop over a set, whose order is not the same on all ranks.

The order of a set depends on the order in which its members came (and for strings on each process's hash seed). On rank 2 the
statistics arrive in another order, so it starts a sum where the others start to gather.

    torchrun --nproc-per-node 4 fault_scenarios/set_order.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser

SUM, GATHER, SPREAD = 1, 9, 17  # equal modulo 8: their order in a small set is that in which they came


def start(statistic: int, values: Tensor) -> dist.Work:
    """Combine one statistic over all ranks, in the way that it needs."""
    if statistic == SUM:
        return dist.all_reduce(values, async_op=True)
    if statistic == GATHER:
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        return dist.all_gather(parts, values, async_op=True)
    return dist.broadcast(values, src=0, async_op=True)


def statistics_seen(rank: int, step: int) -> set[int]:
    """What there is to combine after a step, as it came in."""
    came = [SUM, GATHER, SPREAD] if (rank, step) == (2, 3) else [GATHER, SUM, SPREAD]
    seen: set[int] = set()
    for statistic in came:
        seen.add(statistic)
    return seen


def train(device: torch.device) -> None:
    """Some steps, with the statistics of each."""
    for step in range(6):
        seen = statistics_seen(dist.get_rank(), step)
        for work in [start(statistic, torch.ones(16, device=device)) for statistic in seen]:
            work.wait()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
