"""Healthy: the work is done, all others have ended, and rank 0 still packs what was trained.

It takes longer than ``--hang-after``. Nobody waits for it, and it ends by itself.

    torchrun --nproc-per-node 3 fault_scenarios/healthy_upload.py
"""

from __future__ import annotations

import io
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import join_job, parser


def pack(module: nn.Module, seconds: float) -> int:
    """Pack the weights again and again for so long; returns the size of the smallest package."""
    until = time.monotonic() + seconds
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    smallest = len(file.getvalue())
    while time.monotonic() < until:
        smallest = min(smallest, len(zlib.compress(file.getvalue(), level=9)))
    return smallest


def main() -> None:
    """Train, leave the job, and pack on rank 0."""
    options = parser(__doc__)
    options.add_argument("--pack-s", type=float, default=12, help="seconds that rank 0 packs for (default: %(default)s)")
    arguments = options.parse_args()
    device = join_job(arguments.timeout_s)
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(200, 200).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 200, device=device)).square().mean().backward()
        optimizer.step()
    module = model.module
    del model
    dist.destroy_process_group()
    if rank == 0:
        print(f"packed into {pack(module, arguments.pack_s)} bytes", flush=True)


if __name__ == "__main__":
    main()
