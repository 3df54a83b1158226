"""Chain over groups: rank 0 waits for rank 1, which waits for rank 2, which waits for its data.

Neighbours share a group. Only rank 2 reads from a queue that nobody fills any more; rank 1 waits for it in their group, and
rank 0 for rank 1 in another one. Whoever looks at rank 0's group alone finds rank 1 missing there, which only waits itself.

    torchrun --nproc-per-node 3 fault_scenarios/chain_over_groups.py
"""

from __future__ import annotations

import queue

import torch
import torch.distributed as dist

from common import join_job, parser

STEPS, FILLED = 6, 4


def examples(rank: int) -> queue.Queue[int]:
    """What there is to read: for rank 2 less than it takes."""
    filled: queue.Queue[int] = queue.Queue()
    for number in range(FILLED if rank == 2 else STEPS):
        filled.put(number)
    return filled


def train(device: torch.device) -> None:
    """Some steps, in which each rank meets its neighbours, the last ones first."""
    rank = dist.get_rank()
    front, back = dist.new_group([0, 1]), dist.new_group([1, 2])
    data = examples(rank)
    for _ in range(STEPS):
        values = torch.full((16,), float(data.get()), device=device)
        if rank in (1, 2):
            dist.all_reduce(values, group=back)
        if rank in (0, 1):
            dist.all_reduce(values, group=front)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
