"""Loss keys: the losses are gathered for the log key by key, and one rank has a key more.

Only rank 2's fourth batch holds masks, so only rank 2 has a mask loss to gather. It waits in an all_gather that the others
never call; they wait for its gradients.

    torchrun --nproc-per-node 4 fault_scenarios/loss_keys.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def losses_of(predictions: Tensor, rank: int, batch: int) -> dict[str, Tensor]:
    """The parts of the loss; the masks' part only where there are masks."""
    losses = {"box": predictions.square().mean(), "class": predictions.abs().mean()}
    if (rank, batch) == (2, 3):
        losses["mask"] = predictions.exp().mean()
    return losses


def log(losses: dict[str, Tensor]) -> None:
    """Print the mean of each loss over all ranks."""
    for name, loss in losses.items():
        parts = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, loss.detach())
        if dist.get_rank() == 0:
            print(f"{name}: {torch.stack(parts).mean().item():.3f}", flush=True)


def train(device: torch.device) -> None:
    """Train for some batches, with a line of log for each."""
    model = DistributedDataParallel(nn.Linear(20, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in range(6):
        losses = losses_of(model(torch.randn(8, 20, device=device)), dist.get_rank(), batch)
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
        log(losses)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
