"""Source in group: the rank that broadcasts is given by its number in the group, where its number in the job is wanted.

The group has ranks 2 and 3, and its first member is rank 2; the program says 0. Both members raise, and the other ranks
wait for them in the next sum.

    torchrun --nproc-per-node 4 fault_scenarios/source_in_group.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser


def train(device: torch.device) -> None:
    """The second half of the ranks shares settings, in a group of its own."""
    half = dist.new_group([2, 3])
    settings = torch.full((16,), float(dist.get_rank()), device=device)
    for _ in range(4):
        dist.all_reduce(settings)
        if dist.get_rank() >= 2:
            dist.broadcast(settings, src=0, group=half)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
