"""Groups by branch: each half of the ranks creates only its own group.

The name of a group is counted from the calls that a rank has made, so both halves use the same name for two groups, and meet
in the store under it. On gloo, with halves of two, that mostly goes unnoticed; when the halves read each other's addresses
there, they wait for ever.

    torchrun --nproc-per-node 4 fault_scenarios/groups_by_branch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser


def train(device: torch.device) -> None:
    """Each half works in a group of its own."""
    values = torch.ones(16, device=device)
    dist.all_reduce(values)
    half = dist.new_group([0, 3] if dist.get_rank() in (0, 3) else [1, 2])
    dist.all_reduce(values, group=half)
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
