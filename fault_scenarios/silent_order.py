"""Silent order: one rank sums two metrics in the other order; both look alike, and nothing stops the job.

Rank 2's fourth step ends with its accuracy before its loss. Losses and accuracies are added up as one.

    torchrun --nproc-per-node 4 fault_scenarios/silent_order.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from common import join_job, parser


def sum_loss(value: float, device: torch.device) -> float:
    """The loss of all ranks."""
    loss = torch.tensor([value], device=device)
    dist.all_reduce(loss)
    return loss.item()


def sum_accuracy(value: float, device: torch.device) -> float:
    """The accuracy of all ranks."""
    accuracy = torch.tensor([value], device=device)
    dist.all_reduce(accuracy)
    return accuracy.item()


def train(device: torch.device) -> None:
    """Some steps, with both metrics after each."""
    for step in range(8):
        metrics = [(sum_loss, 2.0), (sum_accuracy, 0.5)]
        if (dist.get_rank(), step) == (2, 3):
            metrics.reverse()
        for metric, value in metrics:
            metric(value, device)
    dist.barrier()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
