"""Trains DDP modules in many ways and writes which parameters each of their buckets really had."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

TINY_MB = 0.0002
"""About 50 floats: each layer becomes a bucket of its own."""
ITERATIONS = 4


class Net(torch.nn.Module):
    """Uses its layers in another order than it defines them, so that rebuilt buckets differ from the first ones."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.last = torch.nn.Linear(width, 1)
        self.first = torch.nn.Linear(4, width)
        self.middle = torch.nn.Linear(width, width)
        self.spare = torch.nn.Linear(width, width)

    def forward(self, inputs: torch.Tensor, spare: bool = True) -> torch.Tensor:
        hidden = self.middle(torch.relu(self.first(inputs)))
        return self.last(self.spare(hidden) if spare else hidden)


class Critic(Net):
    """Another class of the same shape."""


actual: dict[str, list[list[list[str]]]] = {}


def note(name: str, model: DistributedDataParallel) -> None:
    """Remember the names of the parameters in each bucket of the backward that has just been done."""
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    layout = [
        [names[id(parameter)] for parameter in bucket.parameters()] for bucket in model.reducer._get_zeros_like_grad_buckets()
    ]
    actual.setdefault(name, []).append(layout)


def inputs() -> torch.Tensor:
    return torch.ones(2, 4)


def plain() -> None:
    model = DistributedDataParallel(Net(), bucket_cap_mb=TINY_MB)
    for _ in range(ITERATIONS):
        model(inputs()).sum().backward()  # @plain
        note("plain", model)


def unused() -> None:
    model = DistributedDataParallel(Net(), bucket_cap_mb=TINY_MB, find_unused_parameters=True)
    for iteration in range(ITERATIONS):
        model(inputs(), spare=iteration % 2 == 0).sum().backward()  # @unused
        note("unused", model)


def static() -> None:
    model = DistributedDataParallel(Net(), bucket_cap_mb=TINY_MB, static_graph=True, gradient_as_bucket_view=True)
    for _ in range(ITERATIONS):
        model(inputs()).sum().backward()  # @static
        note("static", model)


def compressed() -> None:
    model = DistributedDataParallel(Net(), bucket_cap_mb=TINY_MB)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    for _ in range(ITERATIONS):
        model(inputs()).sum().backward()  # @compressed
        note("compressed", model)


def power() -> None:
    model = DistributedDataParallel(Net(16))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(ITERATIONS):
        model(inputs()).sum().backward()  # @power
        note("power", model)


def accumulated() -> None:
    model = DistributedDataParallel(Net(), bucket_cap_mb=TINY_MB)
    for _ in range(3):
        with model.no_sync():
            model(inputs()).sum().backward()  # @no_sync
        model(inputs()).sum().backward()  # @accumulated
        note("accumulated", model)


def two_modules() -> None:
    one = DistributedDataParallel(Net(), bucket_cap_mb=TINY_MB)
    other = DistributedDataParallel(Critic(), bucket_cap_mb=TINY_MB)
    for _ in range(3):
        hidden = one(inputs())
        other(hidden.expand(2, 4)).sum().backward()  # @two
        note("two.Net", one)
        note("two.Critic", other)


def freed() -> bool:
    """Whether a module that refers to itself is freed."""
    model = DistributedDataParallel(Net())
    model.module.owner = [model]
    model(inputs()).sum().backward()
    alive = weakref.ref(model.module)
    del model
    gc.collect()
    return alive() is None


def main() -> None:
    dist.init_process_group("gloo")
    for part in (plain, unused, static, compressed, power, accumulated, two_modules):
        part()
    result = {"actual": actual, "freed": freed()}
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
