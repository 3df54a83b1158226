"""Healthy: the minimal closed loop of training with DistributedDataParallel, as it should be.

Run it with ``torchrun --nproc-per-node 2 fault_scenarios/healthy_ddp.py``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--bucket-cap-mb", type=float, default=25, help="size of DDP's gradient buckets, in MiB")
    parser.add_argument("--width", type=int, default=128, help="neurons in each hidden layer")
    parser.add_argument("--layers", type=int, default=1, help="hidden layers between the first and the last")
    parser.add_argument("--timeout-s", type=float, default=1800, help="seconds after which torch gives up on a collective")
    return parser.parse_args()


def choose_device() -> torch.device:
    """A GPU of its own if there is one for each rank of this machine, else the CPU."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def make_data() -> TensorDataset:
    """The same examples on every rank; the sampler hands them out."""
    inputs = torch.randn(500, 20, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def make_network(width: int, layers: int) -> nn.Module:
    """A network with ``layers`` square layers between the first and the last."""
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), *hidden, nn.Linear(width, 1))


def train(network: nn.Module, device: torch.device, epochs: int, bucket_cap_mb: float, folder: Path) -> None:
    """Train, and keep a checkpoint of every epoch."""
    model = DistributedDataParallel(network, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = make_data()
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data)  # pads: every rank gets equally many batches
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # another order in each epoch, the same on all ranks
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(network.state_dict(), folder / f"epoch-{epoch}.pt")
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        dist.barrier()  # nobody goes on before the checkpoint is there


def main() -> None:
    """Join the job, train, leave it."""
    arguments = parse_arguments()
    device = choose_device()
    timeout = timedelta(seconds=arguments.timeout_s)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    with tempfile.TemporaryDirectory() as folder:
        network = make_network(arguments.width, arguments.layers).to(device)
        train(network, device, arguments.epochs, arguments.bucket_cap_mb, Path(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
