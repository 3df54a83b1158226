"""Too few started: the program was told of more ranks than the launch line starts.

The configuration still counts the ranks of a second machine. Those that were started wait in ``init_process_group`` for the one
that never comes.

    torchrun --nproc-per-node 3 fault_scenarios/too_few_started.py
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

from common import parser


def ranks_of_configuration() -> int:
    """How many ranks the job should have."""
    return int(os.environ["WORLD_SIZE"]) + 1


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    timeout = timedelta(seconds=arguments.timeout_s)
    rank, size = int(os.environ["RANK"]), ranks_of_configuration()
    dist.init_process_group("gloo", timeout=timeout, rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
