"""Communication stalled: every rank is in the same operation, and the network loses all that they send.

Each rank finds the connections that gloo has made and tells the kernel to drop whatever comes in on them, as a firewall or a
broken link would. Nobody is told of that: the connections stay open, and the operation never ends. For gloo on Linux.

    torchrun --nproc-per-node 3 fault_scenarios/communication_stalled.py
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time

import torch
import torch.distributed as dist

from common import join_job, parser

SO_ATTACH_FILTER = 26
RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter of one instruction: keep 0 bytes of each packet (BPF_RET | BPF_K)."""


def connections() -> list[socket.socket]:
    """All TCP connections of this process, but for those to the store, which is not what fails here."""
    store = int(os.environ["MASTER_PORT"])
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            candidate = socket.socket(fileno=os.dup(int(name)))
            if store in (candidate.getpeername()[1], candidate.getsockname()[1]) or candidate.family == socket.AF_UNIX:
                candidate.close()
            else:
                found.append(candidate)
    return found


def lose_packets() -> None:
    """Let nothing come in any more, on all ranks, before anybody goes on."""
    program = ctypes.create_string_buffer(RETURN_NOTHING)
    for connection in connections():
        connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))
    store = dist.distributed_c10d._get_default_store()
    store.add("deaf", 1)
    while store.add("deaf", 0) < dist.get_world_size():
        time.sleep(0.05)


def train(device: torch.device, steps: int) -> None:
    """Add something up in each step."""
    for step in range(steps):
        if step == 3:
            lose_packets()
        total = torch.ones(1000, device=device)
        dist.all_reduce(total)


def main() -> None:
    """Run the scenario."""
    arguments = parser(__doc__).parse_args()
    device = join_job(arguments.timeout_s)
    train(device, steps=6)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
