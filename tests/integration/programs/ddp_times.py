"""A DDP training with buckets that take long enough to be measured, measured by torch's own logger and by its profiler too.

ddp_times.py FOLDER    leaves <rank>.json (the logger's words), <rank>.trace.json (the profiler's, of PROFILED steps)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DistributedSampler, TensorDataset

WIDTH, LAYERS = 768, 8
MEASURED = 10
"""Iterations that torch's logger measures; the last PROFILED of them are in the profiler's trace too."""
PROFILED = 5


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(128, WIDTH)).square().mean()
        with record_function("the backward"):
            loss.backward()
        optimizer.step()

    for _ in range(MEASURED - PROFILED):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED):
            step()
    step()  # the logger adds up an iteration when the next one begins
    logged = model._get_ddp_logging_data()
    profiler.export_chrome_trace(str(folder / f"{dist.get_rank()}.trace.json"))
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps({key: str(value) for key, value in logged.items()}))
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(TensorDataset(torch.arange(8)))
    for _ in range(4):  # set_epoch is forgotten
        list(sampler)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
