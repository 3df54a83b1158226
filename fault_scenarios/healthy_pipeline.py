"""Healthy: a pipeline with warm-up, whose stages send and receive different numbers of times at any moment.

Each stage takes as many microbatches ahead as there are stages behind it, then one forward and one backward in turn. Nothing
that is sent is waited for before the batch is over, so that no two stages wait for each other.

    torchrun --nproc-per-node 3 fault_scenarios/healthy_pipeline.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser

MICROBATCHES, WIDTH = 6, 20


class Stage:
    """One rank's part of the pipeline."""

    def __init__(self, rank: int, last: int, device: torch.device) -> None:
        self.rank, self.last, self.device = rank, last, device
        self.sent: list[tuple[dist.Work | None, Tensor]] = []

    def forward(self) -> None:
        """Take one microbatch from the stage before and hand it on."""
        values = torch.randn(8, WIDTH, device=self.device)
        if self.rank > 0:
            dist.recv(values, src=self.rank - 1)
        if self.rank < self.last:
            self.sent.append((dist.isend(values, dst=self.rank + 1), values))

    def backward(self) -> None:
        """Take one gradient from the stage behind and hand it back."""
        gradient = torch.ones(8, WIDTH, device=self.device)
        if self.rank < self.last:
            dist.recv(gradient, src=self.rank + 1)
        if self.rank > 0:
            self.sent.append((dist.isend(gradient, dst=self.rank - 1), gradient))

    def finish(self) -> None:
        """Wait until all that was sent has arrived."""
        for work, _ in self.sent:
            if work is not None:
                work.wait()
        self.sent.clear()


def train(device: torch.device) -> None:
    """Some batches, each in microbatches."""
    stage = Stage(dist.get_rank(), dist.get_world_size() - 1, device)
    ahead = min(stage.last - stage.rank, MICROBATCHES)
    for _ in range(3):
        for _ in range(ahead):
            stage.forward()
        for _ in range(MICROBATCHES - ahead):
            stage.forward()
            stage.backward()
        for _ in range(ahead):
            stage.backward()
        stage.finish()
        dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
