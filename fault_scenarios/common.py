"""What every program here needs before it can show its fault: options and a process group."""

from __future__ import annotations

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all programs share; ``description`` is the program's docstring."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--timeout-s",
        type=float,
        default=1800,
        help="seconds after which torch gives up on a collective (default: %(default)s)",
    )
    return options


def join_job(timeout_s: float) -> torch.device:
    """Join the job that torchrun has started; returns this rank's device: a GPU if there is one for each rank, else the CPU."""
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=timeout_s))
    return device
