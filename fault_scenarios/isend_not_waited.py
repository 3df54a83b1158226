"""isend not waited for: rank 0 forgets the handle of its send, and with it the send.

On gloo a send whose handle is gone before the other side has come to its recv is never done, even though the sender goes on.
Rank 1 has something to do first, as the next stage of a pipeline does; then it waits in its recv, and rank 0 at the barrier
after it.

    torchrun --nproc-per-node 2 fault_scenarios/isend_not_waited.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def hand_on(values: Tensor) -> None:
    """Give the values of rank 0 to rank 1."""
    if dist.get_rank() == 0:
        dist.isend(values, dst=1)
    else:
        work = torch.randn(1000, 1000, device=values.device)
        for _ in range(8):
            work = work @ work / 1000
        dist.recv(values, src=0)


def train(device: torch.device) -> None:
    """Some rounds; both ranks meet at the end."""
    for _ in range(4):
        hand_on(torch.randn(256, 256, device=device))
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
