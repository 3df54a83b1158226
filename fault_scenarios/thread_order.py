"""Thread order: two threads of each rank share one group, and which of them comes first is left to chance.

One thread sums the gradients, the other spreads the settings. Here chance is helped along: the gradients come first on rank 0,
the settings on rank 1. Each operation meets the other rank's other one.

    torchrun --nproc-per-node 2 fault_scenarios/thread_order.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from common import join_job, parser


def sum_gradients(values: Tensor) -> dist.Work:
    """Start to add up the gradients."""
    return dist.all_reduce(values, async_op=True)


def spread_settings(values: Tensor) -> dist.Work:
    """Start to hand rank 0's settings to all."""
    return dist.broadcast(values, src=0, async_op=True)


def work(start: Callable[[Tensor], dist.Work], values: Tensor, turn: threading.Event, done: threading.Event) -> None:
    """What each thread does, when it is its turn."""
    turn.wait()
    started = start(values)
    done.set()
    started.wait()


def train(device: torch.device) -> None:
    """Both threads do their part once."""
    tasks = [sum_gradients, spread_settings] if dist.get_rank() == 0 else [spread_settings, sum_gradients]
    turns = [threading.Event() for _ in range(3)]
    turns[0].set()
    threads = [
        threading.Thread(target=work, args=(task, torch.ones(1 << 20, device=device), turns[i], turns[i + 1]), daemon=True)
        for i, task in enumerate(tasks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
