"""Group order: two groups, which the two ranks use in opposite order.

Rank 0 reduces the gradients first and the metrics afterwards; rank 1 does it the other way round. Each waits in the group
that the other would come to next.

    torchrun --nproc-per-node 2 fault_scenarios/group_order.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser


def train(device: torch.device) -> None:
    """Some steps, each with one operation in both groups."""
    gradients, metrics = dist.new_group(), dist.new_group()
    values = torch.ones(64, device=device)
    order = (gradients, metrics) if dist.get_rank() == 0 else (metrics, gradients)
    for _ in range(6):
        for group in order:
            dist.all_reduce(values, group=group)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
