"""Healthy: objects of many megabytes are gathered and handed out, pickled by each rank and sent with padding.

Run it with ``torchrun --nproc-per-node 3 fault_scenarios/healthy_large_objects.py``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser

MEGABYTE = 1 << 20


def gather_results(rank: int, size: int) -> int:
    """Gather what each rank has, rank 1 by far the most; returns how much that is."""
    own = {"rank": rank, "results": bytes((64 if rank == 1 else 1) * MEGABYTE)}
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, own)
    return sum(len(each["results"]) for each in gathered if isinstance(each, dict))


def hand_out(rank: int) -> object:
    """Give all ranks the settings of rank 0."""
    settings: list[object] = [bytes(16 * MEGABYTE) if rank == 0 else None]
    dist.broadcast_object_list(settings, src=0)
    return settings[0]


def train(device: torch.device) -> None:
    """Twice of both, and a sum."""
    for _ in range(2):
        total = gather_results(dist.get_rank(), dist.get_world_size())
        hand_out(dist.get_rank())
        dist.all_reduce(torch.tensor([float(total)], device=device))


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
