"""Each rank ends in another way.  The ranks are forked from one process, which saves the time to import torch in each."""

from __future__ import annotations

import gc
import inspect
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.compiler
import torch.distributed as dist
import torch.nn.parallel
import torch.optim
import torch.utils.data
from torch.testing._internal.distributed import fake_pg


def returns() -> None:
    dist.destroy_process_group()


def raises() -> None:
    raise ValueError("the loss is nan\nin every element")  # @raises


def raises_in_torch() -> None:
    torch.ones(2).view(3)  # @raises_in_torch


def exits() -> None:
    try:
        sys.exit(3)  # @sys_exit
    finally:
        dist.destroy_process_group()


def exits_with_a_text() -> None:
    sys.exit("no checkpoint")


def exits_in_a_thread() -> None:
    thread = threading.Thread(target=sys.exit, args=(9,))
    thread.start()
    thread.join()


def exits_at_once() -> None:
    os._exit(status=5)  # @os_exit


def catches_its_exit() -> None:
    try:
        sys.exit(4)
    except SystemExit:
        torch.ones(1, requires_grad=True).sum().backward()


def waits_for_a_thread() -> None:
    """The main thread is over long before the interpreter is."""
    threading.Thread(target=lambda: time.sleep(0.5) or dist.barrier()).start()


def is_killed() -> None:
    dist.all_reduce(torch.ones(7))  # @killed
    os.kill(os.getpid(), signal.SIGKILL)


def is_terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # @terminated


def handles_sigterm() -> None:
    """A handler of the job's own, set after the recorder's, decides what SIGTERM means."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))
    os.kill(os.getpid(), signal.SIGTERM)


def is_interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


def runs_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")  # @out_of_memory


class TooLarge(torch.autograd.Function):
    """Fits, but its gradient does not."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory in backward")  # @in_backward


class Model(torch.nn.Linear):
    """A model for which a batch may be too large, or wrong."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) == 3:
            raise ValueError("no batch of three")
        if len(batch) == 2:
            torch.ones(1 << 50)  # @in_forward
        return super().forward(batch)


def skips_what_does_not_fit() -> None:
    """Memory runs out in a forward and in a backward, both are caught; another error is nobody's business."""
    model = torch.nn.parallel.DistributedDataParallel(Model(2, 1))
    for rows in (2, 3):
        try:
            model(torch.ones(rows, 2))
        except (RuntimeError, ValueError):
            continue
    try:
        TooLarge.apply(torch.ones(1, requires_grad=True)).sum().backward()
    except RuntimeError:
        dist.destroy_process_group()


def holds_back() -> None:
    try:
        {}["missing"]  # @missing
    finally:
        dist.barrier()  # @finally
        dist.barrier()


def recovers() -> None:
    """Two exceptions at one place in memory, both handled; the second is not taken for the first."""
    for name in ("first", "second"):
        try:
            raise LookupError(name)
        except LookupError:
            for _ in range(3):
                dist.barrier()
    dist.destroy_process_group()


def hides_its_exceptions() -> None:
    sys.excepthook = lambda *_: print("nothing to see here", file=sys.stderr)
    raise ArithmeticError("hidden")  # @hidden


def raises_in_a_thread() -> None:
    def work() -> None:
        raise EnvironmentError("in a thread")  # noqa: UP024 - an alias, whose real name the record must have  # @in_a_thread

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()


def cannot_be_printed() -> None:
    class Strange(Exception):  # noqa: N818 - a name as users give them
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise Strange


def is_transparent() -> None:
    """What the recorder replaced still looks, pickles and fails as it did."""
    assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit
    assert pickle.loads(pickle.dumps(os._exit)) is os._exit
    assert pickle.loads(pickle.dumps(dist.init_process_group)) is dist.init_process_group
    assert next(iter(inspect.signature(dist.new_group).parameters)) == "ranks"
    for wrong in (lambda: os._exit("x"), lambda: sys.exit(1, 2)):
        try:
            wrong()
        except TypeError:
            continue
        raise AssertionError("wrong arguments were accepted")


ENDINGS: list[Callable[[], None]] = [
    returns,
    raises,
    raises_in_torch,
    exits,
    exits_with_a_text,
    exits_in_a_thread,
    exits_at_once,
    catches_its_exit,
    waits_for_a_thread,
    is_killed,
    is_terminated,
    handles_sigterm,
    is_interrupted,
    runs_out_of_memory,
    skips_what_does_not_fit,
    holds_back,
    recovers,
    hides_its_exceptions,
    raises_in_a_thread,
    cannot_be_printed,
    is_transparent,
]


def start(rank: int) -> int:
    """Fork a rank, whose output goes to a file; the number of its process."""
    child = os.fork()
    if child == 0:
        out = os.open(Path(sys.argv[1], f"{ENDINGS[rank].__name__}.out"), os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 2)
        dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=rank, world_size=len(ENDINGS))
        dist.all_reduce(torch.ones(2))
        ENDINGS[rank]()
    return child


def main() -> None:
    gc.freeze()  # the children need not look through all of torch when they end
    statuses = {}
    for rank, ending in enumerate(ENDINGS):
        child = start(rank)
        if child == 0:
            return  # and end as every interpreter does
        statuses[ending.__name__] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    Path(sys.argv[1], "statuses.json").write_text(json.dumps(statuses))


if __name__ == "__main__":
    main()
