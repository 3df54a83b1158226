"""Missing at the start: one rank waits for a file before it joins the job, and the file is written only after all have joined.

Rank 2's share of the data is not there yet. Rank 0 would write it, but stands in ``init_process_group`` until rank 2 comes.

    torchrun --nproc-per-node 3 fault_scenarios/missing_at_start.py
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from common import join_job, parser


def share(folder: Path, rank: int) -> Path:
    """The file with a rank's share of the data."""
    return folder / f"share-{rank}.pt"


def wait_for_share(folder: Path) -> None:
    """Wait until this rank's share is there; only rank 2's is not."""
    rank = int(os.environ["RANK"])
    while rank == 2 and not share(folder, rank).exists():
        time.sleep(0.1)


def write_shares(folder: Path) -> None:
    """Split the data among the ranks."""
    for rank, part in enumerate(torch.randn(96, 20).split(32)):
        torch.save(part, share(folder, rank))


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wait_for_share(Path(folder))
        join_job(arguments.timeout_s)
        if dist.get_rank() == 0:
            write_shares(Path(folder))
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
