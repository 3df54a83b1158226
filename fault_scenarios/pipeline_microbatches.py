"""Pipeline microbatches: one stage takes one microbatch less than its neighbours count.

The batch has 28 examples. Rank 1 drops the microbatch that is not full; ranks 0 and 2 count it. Rank 0 waits in a fourth send,
rank 2 in a fourth recv, while rank 1 is at the barrier after the batch.

    torchrun --nproc-per-node 3 fault_scenarios/pipeline_microbatches.py
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from common import join_job, parser

EXAMPLES, MICROBATCH, WIDTH = 28, 8, 20


def microbatches(rank: int) -> int:
    """Into how many parts a batch falls, as this rank sees it."""
    return EXAMPLES // MICROBATCH if rank == 1 else math.ceil(EXAMPLES / MICROBATCH)


def run_stage(device: torch.device, rank: int, last: int) -> None:
    """Take each microbatch from the stage before and hand it to the next."""
    for _ in range(microbatches(rank)):
        values = torch.randn(MICROBATCH, WIDTH, device=device)
        if rank > 0:
            dist.recv(values, src=rank - 1)
        if rank < last:
            dist.send(values.relu(), dst=rank + 1)


def train(device: torch.device) -> None:
    """One batch; all ranks meet at its end."""
    run_stage(device, dist.get_rank(), dist.get_world_size() - 1)
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
