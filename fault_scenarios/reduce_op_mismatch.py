"""Reduce op mismatch: one rank asks for the largest value where the others ask for the sum.

Rank 1's configuration says ``max``. Gloo combines each part as the rank that holds it was told: the job goes on, with numbers
that mean nothing, and ends with status 0.

    torchrun --nproc-per-node 3 fault_scenarios/reduce_op_mismatch.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser

OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def configuration(rank: int) -> str:
    """How this rank was told to combine the metrics."""
    return "max" if rank == 1 else "sum"


def train(device: torch.device) -> None:
    """Combine the metrics of some batches."""
    operation = OPERATIONS[configuration(dist.get_rank())]
    for _ in range(6):
        metrics = torch.ones(16, device=device)
        dist.all_reduce(metrics, op=operation)
    if dist.get_rank() == 0:
        print(f"metrics: {metrics.tolist()}", flush=True)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
