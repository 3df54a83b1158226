"""Compiles a training step in parts and prints what the compiler made of it."""

from __future__ import annotations

import json

import torch
import torch._dynamo
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import desync


def compiler_made() -> dict[str, object]:
    """Graphs, calls in them, and graph breaks by their first line, since the last time."""
    breaks = {reason.splitlines()[0]: number for reason, number in counters["graph_break"].items()}
    made = {"breaks": breaks, **{name: counters["stats"][name] for name in ("unique_graphs", "calls_captured")}}
    counters.clear()
    torch._dynamo.reset()
    return made


def module() -> dict[str, object]:
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)))
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2, 4)).sum().backward()  # @module
    return compiler_made()


def step() -> dict[str, object]:
    model = torch.nn.Linear(4, 2)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def train(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = parallel(inputs).sum()
        loss.backward()  # @step
        optimizer.step()
        return loss

    for batch in DataLoader(torch.ones(6, 4), batch_size=2):
        train(batch)
    return compiler_made()


def one_graph() -> dict[str, object]:
    @torch.compile(backend="eager", fullgraph=True)
    def reduced(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor * 2
        dist.all_reduce(tensor)
        desync.mark("inside", 1)
        return tensor + 1

    assert reduced(torch.ones(3)).tolist() == [3, 3, 3]
    return compiler_made()


def main() -> None:
    dist.init_process_group("gloo")
    desync.mark("outside", 1)
    print("made:", json.dumps({part.__name__: part() for part in (module, step, one_graph)}, sort_keys=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
