"""Backend order: two groups with backends of their own, which one rank uses in the other order.

The gradients go through the job's own backend (NCCL where there are GPUs), the metrics through gloo. Rank 3 logs its metrics
after the gradients, the others before: rank 3 waits in the one backend, the others in the other, and neither backend sees
more than that somebody is missing.

    torchrun --nproc-per-node 4 fault_scenarios/backend_order.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def log_metrics(metrics: Tensor, group: dist.ProcessGroup | None) -> None:
    """Sum the metrics of all ranks on the CPU."""
    dist.all_reduce(metrics, group=group)


def sum_gradients(gradients: Tensor) -> None:
    """Sum the gradients where they are."""
    dist.all_reduce(gradients)


def train(device: torch.device) -> None:
    """Some steps, each with one operation in both backends."""
    cpu_group = dist.new_group(backend="gloo")
    logs_first = dist.get_rank() != 3
    for _ in range(6):
        gradients, metrics = torch.ones(64, device=device), torch.ones(3)
        if logs_first:
            log_metrics(metrics, cpu_group)
        sum_gradients(gradients)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if not logs_first:
            log_metrics(metrics, cpu_group)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
