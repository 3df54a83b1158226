"""Healthy: only rank 0 destroys the process group, after all ranks are done; on gloo nobody waits for it.

Run it with ``torchrun --nproc-per-node 3 fault_scenarios/healthy_destroy_on_one_rank.py``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser


def train(device: torch.device) -> None:
    """Some sums, then all ranks meet."""
    values = torch.ones(16, device=device)
    for _ in range(6):
        dist.all_reduce(values)
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    if dist.get_rank() == 0:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
