"""Early stop: each rank decides by its own loss when it is good enough, and leaves the loop alone.

Rank 1's examples are easy. It breaks out of the loop in the middle of its data and waits at the barrier behind it, while the
others wait for its gradients in the next backward.

    torchrun --nproc-per-node 3 fault_scenarios/early_stop.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import join_job, parser

TARGET = 0.5


def read_shard(rank: int) -> TensorDataset:
    """The examples that this rank trains on; rank 1's last batches are all alike, and easy."""
    inputs = torch.randn(64, 20)
    if rank == 1:
        inputs[40:] = 0.0
    return TensorDataset(inputs, 10 * inputs.sum(dim=1, keepdim=True))


def train(device: torch.device) -> None:
    """Train until the loss is small enough."""
    network = nn.Sequential(nn.Linear(20, 32, bias=False), nn.ReLU(), nn.Linear(32, 1, bias=False)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for inputs, targets in DataLoader(read_shard(dist.get_rank()), batch_size=8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        if loss.item() < TARGET:
            break
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
