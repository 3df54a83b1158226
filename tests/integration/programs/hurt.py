"""A small healthy job, again and again, each time with another part of the recorder made to fail.

Its ranks must end with their own status, 4, all the same.  They are forked from one process, which saves the time to import
torch in each.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
import torch._dynamo  # the first optimizer imports it
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

broken = mock.Mock(side_effect=RuntimeError("broken for the test"))


def nothing() -> None:
    """Something else is broken, from outside."""


def journal() -> None:
    """The writer raises on each call."""
    from desync.journal.writer import JournalWriter

    for name in ("operation", "mark", "intern", "count"):
        setattr(JournalWriter, name, broken)


def sites() -> None:
    from desync.recorder.sites import Sites

    Sites.at = broken


def groups() -> None:
    from desync.recorder.groups import Groups

    Groups.find = broken


def kernels() -> None:
    """No operator can be hooked."""
    from desync.recorder import hook

    hook.discover = broken


def unknown_operators() -> None:
    """Operators whose arguments have names that nobody has heard of."""
    from desync.recorder import operators

    operators._first = lambda positions: lambda names: None


def callbacks() -> None:
    """What gloo's thread calls when an operation is over raises."""
    from desync.journal.writer import JournalWriter

    JournalWriter.completed = broken


def parts_of_torch() -> None:
    """A torch of the future has none of what the recorder wraps."""
    del torch._C._distributed_c10d.ProcessGroup.unbox
    DistributedDataParallel._after_forward = DistributedDataParallel._post_forward
    sys.modules["torch.utils.data.dataloader"].__dict__.pop("_BaseDataLoaderIter")
    sys.modules["torch.optim.optimizer"].__dict__.pop("register_optimizer_step_post_hook")


def small_ring() -> None:
    os.environ["DESYNC_JOURNAL_SLOTS"] = "16"


def small_heap() -> None:
    os.environ["DESYNC_JOURNAL_HEAP_BYTES"] = "2400"


def no_space() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def not_writable() -> None:
    """A file lies where the folder should be, which holds up root as well."""
    folder = Path(os.environ["DESYNC_RUN_DIR"])
    with contextlib.suppress(FileExistsError):
        Path(folder, "journals").touch(exist_ok=False)


FAULTS: list[Callable[[], None]] = [
    nothing,
    journal,
    sites,
    groups,
    kernels,
    unknown_operators,
    callbacks,
    parts_of_torch,
    small_ring,
    small_heap,
    no_space,
    not_writable,
]


def train() -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(torch.ones(12, 2), batch_size=4):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def communicate(rank: int) -> None:
    for elements in range(1, 20):
        total = torch.ones(elements)
        dist.all_reduce(total)  # @all_reduce
        assert total.tolist() == [2] * elements
        received = torch.zeros(1)
        works = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(received, 1 - rank)]  # @p2p
        for work in works:
            work.wait()
        assert received.item() == 1
    try:
        dist.broadcast(torch.ones(2), src=5)
    except RuntimeError as error:
        assert error.__context__ is None, repr(error.__context__)  # noqa: PT017 - the recorder's must not be its context
    dist.barrier()


def run(fault: Callable[[], None], rank: int) -> None:
    folder = Path(sys.argv[1], fault.__name__)
    folder.mkdir(exist_ok=True)
    os.environ["DESYNC_RUN_DIR"] = str(folder)
    os.dup2(os.open(folder / f"{rank}.out", os.O_WRONLY | os.O_CREAT), 2)
    fault()
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    train()
    communicate(rank)
    dist.destroy_process_group()
    sys.exit(4)


def main() -> None:
    gc.freeze()  # the children need not look through all of torch when they end
    statuses = {}
    for fault in FAULTS:
        children = []
        for rank in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                run(fault, rank)
        statuses[fault.__name__] = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    Path(sys.argv[1], "statuses.json").write_text(json.dumps(statuses))


if __name__ == "__main__":
    main()
