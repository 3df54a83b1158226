"""Crossed sends: two ranks exchange tensors, and both send first.

A send waits for its recv, and both recvs stand behind the sends: neither rank gets there.

    torchrun --nproc-per-node 2 fault_scenarios/crossed_sends.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def exchange(own: Tensor) -> Tensor:
    """The other rank's tensor for this rank's."""
    other = 1 - dist.get_rank()
    theirs = torch.empty_like(own)
    dist.send(own, dst=other)
    dist.recv(theirs, src=other)
    return theirs


def train(device: torch.device) -> None:
    """Mix the two ranks' values a few times."""
    values = torch.full((4_000_000,), float(dist.get_rank()), device=device)
    for _ in range(3):
        values = (values + exchange(values)) / 2


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
