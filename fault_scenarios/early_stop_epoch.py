"""Early stop after an epoch: each rank's own validation loss says when to stop.

Rank 1's validation loss stops falling first. It leaves the loop over the epochs alone and waits at the barrier behind it,
while the others wait for its gradients in the next epoch.

    torchrun --nproc-per-node 3 fault_scenarios/early_stop_epoch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import join_job, parser

PATIENCE = 2


def validation_loss(rank: int, epoch: int) -> float:
    """What this rank's part of the validation set says; rank 1's gets worse after the second epoch."""
    return 1.0 + 0.1 * epoch if rank == 1 and epoch > 1 else 1.0 / (1 + epoch)


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[tuple[torch.Tensor, ...]]) -> None:
    """One pass over the data."""
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def train(device: torch.device) -> None:
    """Train until the validation loss has not fallen for some epochs."""
    model = DistributedDataParallel(nn.Linear(20, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(32, 20, device=device)), batch_size=8)
    best, waited = float("inf"), 0
    for epoch in range(10):
        train_epoch(model, optimizer, loader)
        loss = validation_loss(dist.get_rank(), epoch)
        best, waited = (loss, 0) if loss < best else (best, waited + 1)
        if waited == PATIENCE:
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
