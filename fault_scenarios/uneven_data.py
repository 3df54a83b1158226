"""Uneven data: one rank's shard is a little smaller than the others', so its data ends one batch early.

In the last step of the epoch ranks 0, 1 and 3 wait for rank 2's gradients, while rank 2 is done and waits for them at the
barrier after the loop.

    torchrun --nproc-per-node 4 fault_scenarios/uneven_data.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import join_job, parser

EXAMPLES = (64, 64, 56, 64)
"""In each rank's shard: with batches of 8, rank 2 has seven batches and the others have eight."""


def read_shard(rank: int) -> TensorDataset:
    """The examples that this rank trains on."""
    inputs = torch.randn(EXAMPLES[rank % len(EXAMPLES)], 20)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def train(device: torch.device, epochs: int) -> None:
    """Train for some epochs; all ranks meet after each."""
    network = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(read_shard(dist.get_rank()), batch_size=8, shuffle=True)
    for epoch in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device, epochs=3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
