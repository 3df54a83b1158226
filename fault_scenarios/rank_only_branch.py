"""Rank-only branch: rank 0 saves a checkpoint, and saving it needs a collective that no other rank calls.

The checkpoint holds the random state of every rank, so that training can be resumed exactly. Gathering those states under
``if rank == 0`` leaves rank 0 in an all_gather while the others are already in the next epoch's backward.

    torchrun --nproc-per-node 4 fault_scenarios/rank_only_branch.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import join_job, parser


def save_checkpoint(model: nn.Module, folder: str, device: torch.device) -> None:
    """Write the model and the random state of every rank."""
    own = torch.get_rng_state().to(device)
    states = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(states, own)
    torch.save({"model": model.state_dict(), "random_states": states}, Path(folder) / "checkpoint.pt")


def train(device: torch.device, epochs: int, folder: str) -> None:
    """Train for some epochs, with a checkpoint after each."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(64, 20)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8)
    for _ in range(epochs):
        for batch, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(batch.to(device)), targets.to(device)).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            save_checkpoint(model, folder, device)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    with tempfile.TemporaryDirectory() as folder:
        train(device, epochs=3, folder=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
