"""The smallest DDP job, of one rank; says where ``desync`` came from, and ends with status 4."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()  # @backward
    print("desync:", getattr(sys.modules.get("desync"), "__file__", None))
    print("hidden:", "hidden_ran" in sys.modules)
    print("level:", dist.get_debug_level().name)
    dist.destroy_process_group()
    sys.exit(4)


if __name__ == "__main__":
    main()
