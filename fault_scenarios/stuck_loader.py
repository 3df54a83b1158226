"""Stuck loader: one rank's data set waits for a lock that it holds itself.

A broken example is replaced by the one before it, read with the connection still held. Only rank 1 has a broken example: it
stands still in its loader, outside any collective, and the others wait for its gradients.

    torchrun --nproc-per-node 3 fault_scenarios/stuck_loader.py
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from common import join_job, parser


class Examples(Dataset[Tensor]):
    """Examples behind a connection that serves one reader at a time."""

    def __init__(self, rank: int) -> None:
        self.connection = threading.Lock()
        self.examples = torch.randn(64, 20)
        if rank == 1:
            self.examples[43] = torch.nan

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Tensor:
        """One example, or the one before it where it is broken."""
        with self.connection:
            example = self.examples[index]
            if example.isnan().any():
                return self[index - 1]
            return example


def train(device: torch.device) -> None:
    """Train for one epoch."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs in DataLoader(Examples(dist.get_rank()), batch_size=8):
        optimizer.zero_grad()
        model(inputs.to(device)).square().mean().backward()
        optimizer.step()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
