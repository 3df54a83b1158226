"""Skipped batch: one rank meets a loss that is not finite and goes on to its next batch.

Rank 1's fourth batch is broken, and ``continue`` leaves its backward out. From then on rank 1's gradients are added to those
of the others' batch before; it shows at the end, when rank 1 is at the barrier and the others wait for one more backward.

    torchrun --nproc-per-node 3 fault_scenarios/skipped_batch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import join_job, parser


def read_shard(rank: int) -> TensorDataset:
    """The examples that this rank trains on; one of rank 1's is broken."""
    inputs = torch.randn(64, 20)
    if rank == 1:
        inputs[29] = torch.nan
    return TensorDataset(inputs)


def train(device: torch.device) -> None:
    """Train for one epoch; all ranks meet at its end."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (inputs,) in DataLoader(read_shard(dist.get_rank()), batch_size=8):
        loss = model(inputs.to(device)).square().mean()
        if not loss.isfinite():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
