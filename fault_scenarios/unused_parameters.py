"""Unused parameters: in one batch of one rank a part of the model has no share in the loss.

Only some examples carry a second label. Rank 1's last batch has none, so its loss leaves the second head out, and DDP never
gets the gradients that it waits for. Rank 1 goes on to the barrier after the epoch; the others wait in backward. With
``--batch`` the batch without labels comes earlier: then rank 1 raises in its next forward instead.

    torchrun --nproc-per-node 3 fault_scenarios/unused_parameters.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser

BATCHES = 8


class TwoHeads(nn.Module):
    """One body, two predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(20, 32)
        self.price = nn.Linear(32, 1)
        self.rating = nn.Linear(32, 1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Price and rating of each example."""
        features = self.body(inputs).relu()
        return self.price(features), self.rating(features)


def train(device: torch.device, batch_without_ratings: int) -> None:
    """Train for one epoch; all ranks meet at its end."""
    model = DistributedDataParallel(TwoHeads().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in range(BATCHES):
        inputs = torch.randn(8, 20, device=device)
        rated = torch.arange(8, device=device) % 2 == 0
        if dist.get_rank() == 1 and batch == batch_without_ratings:
            rated[:] = False
        price, rating = model(inputs)
        loss = mse_loss(price, inputs.sum(dim=1, keepdim=True))
        if rated.any():
            loss = loss + mse_loss(rating[rated], inputs.mean(dim=1, keepdim=True)[rated])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    options = parser(__doc__)
    options.add_argument("--batch", type=int, default=BATCHES - 1, help="rank 1's batch without ratings (default: the last)")
    arguments = options.parse_args()
    device = join_job(arguments.timeout_s)
    train(device, arguments.batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
