"""Group branch: a group is created only by the ranks that will use it.

``new_group`` is a call of all ranks of the job, also of those that are no members. Rank 2 goes on without it, and the others
wait for it in the creation.

    torchrun --nproc-per-node 3 fault_scenarios/group_branch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser


def train(device: torch.device) -> None:
    """Ranks 0 and 1 share the work of the first stage, in a group of their own."""
    members = [0, 1]
    values = torch.ones(16, device=device)
    dist.all_reduce(values)
    if dist.get_rank() in members:
        first_stage = dist.new_group(members)
        dist.all_reduce(values, group=first_stage)
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
