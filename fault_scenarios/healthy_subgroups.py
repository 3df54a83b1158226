"""Healthy: groups that only some ranks use, each in its own rhythm, created by all.

Run it with ``torchrun --nproc-per-node 4 fault_scenarios/healthy_subgroups.py``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser


def train(device: torch.device) -> None:
    """Pairs of ranks work by themselves; rank 3 does more with rank 2 than rank 1 with rank 0."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    values = torch.ones(16, device=device)
    for step in range(6):
        for _ in range(1 if rank < 2 else 5):
            dist.all_reduce(values, group=pairs[rank // 2])
        if rank < 2 and step % 2:
            dist.broadcast(values, src=1, group=pairs[0])
        dist.all_reduce(values)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
