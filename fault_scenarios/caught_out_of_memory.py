"""Caught out-of-memory: one rank runs out of memory, catches the error and goes on to its next batch.

The example that is too long is on rank 1 only, so only rank 1 leaves a backward out. It is at the barrier after the epoch when
the others still wait for it.

    torchrun --nproc-per-node 3 fault_scenarios/caught_out_of_memory.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser

WIDTH = 2


class Attention(nn.Module):
    """Every token looks at every other."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``[length, width]``, each mixed with those that it resembles."""
        scores = self.query(tokens) @ tokens.T
        return scores.softmax(dim=1) @ tokens


def document_length(rank: int, number: int) -> int:
    """How many tokens a document of a rank's data set has."""
    return 8_000_000 if (rank, number) == (1, 4) else 64


def train(device: torch.device) -> None:
    """Train on some documents, one a step; all ranks meet at the end."""
    model = DistributedDataParallel(Attention().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(8):
        tokens = torch.ones(document_length(dist.get_rank(), number), WIDTH, device=device)
        try:
            optimizer.zero_grad()
            model(tokens).square().mean().backward()
        except RuntimeError:
            print(f"rank {dist.get_rank()}: document {number} does not fit, skipped", flush=True)
            continue
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
