"""Unpicklable: one rank gathers an object that cannot be pickled, raises before the collective and ends.

Rank 1's record of its worst example holds the open file that it came from.

    torchrun --nproc-per-node 3 fault_scenarios/unpicklable.py
"""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist

from common import join_job, parser


def worst_example(rank: int, file: TextIO) -> dict[str, object]:
    """What to show of this rank."""
    return {"rank": rank, "source": file if rank == 1 else file.name}


def train(device: torch.device) -> None:
    """Some steps; then the worst examples of all ranks are gathered."""
    values = torch.ones(16, device=device)
    for _ in range(4):
        dist.all_reduce(values)
    gathered: list[object] = [None] * dist.get_world_size()
    with Path(__file__).open(encoding="utf-8") as file:
        dist.all_gather_object(gathered, worst_example(dist.get_rank(), file))


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
