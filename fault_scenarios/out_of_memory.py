"""Out of memory: one rank meets an example that is far longer than all others, and attention needs length x length numbers.

Rank 1's fifth document has eight million tokens, which would take 256 TB: the allocator refuses, rank 1 raises and ends, the
others wait for its gradients until torchrun ends them.

    torchrun --nproc-per-node 3 fault_scenarios/out_of_memory.py
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
        self.key = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``[length, width]``, each mixed with those that it resembles."""
        scores = self.query(tokens) @ self.key(tokens).T
        return scores.softmax(dim=1) @ tokens


def document_length(rank: int, number: int) -> int:
    """How many tokens a document of a rank's data set has."""
    return 8_000_000 if (rank, number) == (1, 4) else 64


def train(device: torch.device, documents: int) -> None:
    """Train on some documents, one a step."""
    model = DistributedDataParallel(Attention().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(documents):
        tokens = torch.ones(document_length(dist.get_rank(), number), WIDTH, device=device)
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device, documents=8)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
