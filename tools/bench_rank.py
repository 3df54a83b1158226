"""One rank of the benchmark: measures one part and writes raw numbers as JSON.  Started by ``bench_recorder.py``.

The recorder is installed here as ``desync watch`` installs it in a job, and then taken out and put back between measurements:
within one process, because two processes of the same program differ by more than what is to be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

SIZES = {"1": 1, "1 Ki": 1 << 10, "256 Ki": 1 << 18}
LAYERS, WIDTH, BATCH = 12, 256, 64
BUCKET_MB = {"linear": 1.0, "transformer": 10.0}
"""Both are launched in four buckets or so."""
WARM_UP = 12
"""Steps before the first that counts: DDP rebuilds its buckets, and the recorder looks more closely at the first ten."""

Mode = Callable[[], AbstractContextManager[Any]]
_now = time.perf_counter_ns


def main() -> None:
    """Measure the part that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--backend", default="gloo", choices=["fake", "gloo"])
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--store", required=True, help="file through which the ranks meet")
    parser.add_argument("--out", required=True, help="where rank 0 writes its numbers")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--model", default="linear", choices=sorted(BUCKET_MB))
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = PARTS[options.part](options)
    if options.rank == 0:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(result, file)


class Recording:
    """The recorder of this process, which can be taken out to the last wrapper and put back.

    What is left while it is out: wrappers of functions about groups, which no measurement calls, and the open journal.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from desync.recorder import imports, install

        os.environ["DESYNC_RUN_DIR"] = os.path.dirname(options.out)
        imports.arm()
        connect(options)
        if install.recorder is None or install.recorder.hook is None:
            raise SystemExit("the recorder could not be installed; `desync doctor` says why")
        self.hook = install.recorder.hook
        self.groups = install.recorder.groups
        self.gloo = options.backend == "gloo"
        self._wrapped = [(owner, name, getattr(owner, name)) for owner, name in _wrapped_functions()]
        self._optimizer_hooks = _optimizer_hooks()
        self._kept_hooks = dict(self._optimizer_hooks)
        self.off()

    def off(self) -> None:
        """Put torch's own functions back and take the kernels out of the dispatcher."""
        self.hook.remove()
        for owner, name, wrapper in self._wrapped:
            setattr(owner, name, wrapper.__wrapped__)
        self._optimizer_hooks.clear()

    def on(self, completion: bool = True) -> None:
        """Record again; without ``completion`` gloo is not asked to call back."""
        for group in self.groups._entries.values():
            group.completes = completion and self.gloo
        self.hook.install()
        for owner, name, wrapper in self._wrapped:
            setattr(owner, name, wrapper)
        self._optimizer_hooks.update(self._kept_hooks)

    @contextmanager
    def mode(self, completion: bool = True) -> Iterator[None]:
        """Recording for a while."""
        self.on(completion)
        try:
            yield
        finally:
            self.off()


def _wrapped_functions() -> list[tuple[Any, str]]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    places = [
        (torch.autograd, "backward"),
        (_BaseDataLoaderIter, "__next__"),
        (DistributedDataParallel, "_pre_forward"),
        (DistributedDataParallel, "_post_forward"),
    ]
    for owner, name in places:
        if not hasattr(getattr(owner, name), "__wrapped__"):
            raise SystemExit(f"{name} is not wrapped by the recorder: this benchmark has to be brought up to date")
    return places


def _optimizer_hooks() -> dict[int, Any]:
    from torch.optim import optimizer

    return optimizer._global_optimizer_post_hooks


@contextmanager
def empty_hook() -> Iterator[None]:
    """A kernel that does nothing at the place where the recorder's kernels are, for every operator that they hook."""
    from desync.recorder.operators import discover

    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    from torch import library

    kernels: Any = library.Library("c10d", "IMPL")

    def make(overload: Any) -> Callable[..., Any]:
        return lambda keyset, *arguments: overload.redispatch(keyset & below, *arguments)

    for operator in discover():
        kernels.impl(operator.name, make(operator.overload), "BackendSelect", with_keyset=True)
    try:
        yield
    finally:
        kernels._destroy()


def connect(options: argparse.Namespace) -> None:
    """Join the job's process group."""
    if options.backend == "fake":
        from torch.testing._internal.distributed import fake_pg  # noqa: F401 - its import registers the backend
    store = dist.FileStore(options.store, options.size)
    # By way of its module: the name in torch.distributed was bound before the recorder came.
    distributed_c10d.init_process_group(options.backend, rank=options.rank, world_size=options.size, store=store)


def detail_group() -> Any:
    """A group of all ranks whose backend is in the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group()
    finally:
        dist.set_debug_level(before)
    return group


def interleave(
    modes: dict[str, Mode], measure: dict[str, Callable[[], float]], rounds: int, result: dict[str, list[float]]
) -> None:
    """Measure each mode once in every round; each round begins with another one, so that drift hits all alike."""
    names = list(modes)
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            with modes[name]():
                result.setdefault(name, []).append(measure[name]())


def median_of(call: Callable[[], object], times: int, before: Callable[[], object] = lambda: None) -> float:
    """Median duration of one call in nanoseconds, after a few that are not counted; ``before`` each, not counted either."""
    for _ in range(max(5, times // 10)):
        call()
    durations = []
    for _ in range(times):
        before()
        start = _now()
        call()
        durations.append(_now() - start)
    return statistics.median(durations)


def operations(options: argparse.Namespace) -> Any:
    """Cost of one operation in every mode: {operation: {mode: [ns of each round]}}."""
    recording = Recording(options)
    wrapped = None
    modes: dict[str, Mode] = {
        "bare": nullcontext,
        "empty hook": empty_hook,
        "desync": lambda: recording.mode(completion=False),
    }
    if options.backend == "gloo":
        modes["desync + completion"] = recording.mode
        # The fake backend has no sequence numbers, which the wrapper demands.
        modes["DETAIL"] = nullcontext
        wrapped = detail_group()
    result: dict[str, dict[str, list[float]]] = {}
    for title, call in _calls(options):
        times = 200 if options.backend == "fake" else 12 if "256" in title else 40
        measure = {name: _timer(call, wrapped if name == "DETAIL" else None, times) for name in modes}
        interleave(modes, measure, options.rounds, result.setdefault(title, {}))
    if options.backend == "fake":
        call, work = _all_reduce(torch.ones(1 << 10)), _work()
        cold = {name: lambda: median_of(lambda: call(None), 20, before=work) for name in modes}
        interleave(modes, cold, options.rounds, result.setdefault("all_reduce, 1 Ki, after a layer's backward", {}))
    dist.destroy_process_group()
    return result


def _work() -> Callable[[], object]:
    """What a training step does between two of its operations: it leaves the processor's caches full of other things."""
    model = torch.nn.Linear(4 * WIDTH, 4 * WIDTH)
    batch = torch.randn(BATCH, 4 * WIDTH)
    return lambda: model(batch).sum().backward()


def bare(options: argparse.Namespace) -> Any:
    """Cost of one operation without anything of desync, for comparing processes: {operation: ns}."""
    connect(options)
    times = 1000 if options.backend == "fake" else 300
    result = {title: _timer(call, None, times if "256" not in title else times // 4)() for title, call in _calls(options)}
    dist.destroy_process_group()
    return result


def _timer(call: Callable[[Any], object], group: Any, times: int) -> Callable[[], float]:
    return lambda: median_of(lambda: call(group), times)


def _calls(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[Any], object]]]:
    for name, elements in SIZES.items():
        yield f"all_reduce, {name}", _all_reduce(torch.ones(elements))
    tensor = torch.ones(1 << 10)
    # Without async_op=False in the way, gloo calls back.
    yield "all_reduce, asynchronous, 1 Ki", lambda group: dist.all_reduce(tensor, group=group, async_op=True).wait()
    source, target = torch.ones(1 << 10), torch.ones(options.size << 10)
    yield "all_gather_into_tensor, 1 Ki", lambda group: dist.all_gather_into_tensor(target, source, group=group)
    if options.size == 2:
        transfer, other = (dist.send, 1) if options.rank == 0 else (dist.recv, 0)
        back, _ = (dist.recv, 1) if options.rank == 0 else (dist.send, 0)

        def exchange(group: Any) -> None:
            transfer(source, other, group=group)
            back(source, other, group=group)

        yield "send and recv, 1 Ki", exchange


def _all_reduce(tensor: torch.Tensor) -> Callable[[Any], object]:
    return lambda group: dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)


class Training:
    """A DDP model with its data and optimizer."""

    def __init__(self, options: argparse.Namespace, level: dist.DebugLevel) -> None:
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, TensorDataset

        before = dist.get_debug_level()
        dist.set_debug_level(level)
        self.model = DistributedDataParallel(
            layers(options.model), bucket_cap_mb=BUCKET_MB[options.model], gradient_as_bucket_view=True
        )
        dist.set_debug_level(before)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(TensorDataset(torch.randn(BATCH * 64, WIDTH)), batch_size=BATCH)
        self.shape = (-1, WIDTH) if options.model == "linear" else (4, -1, WIDTH)
        self.batches: Iterator[Any] = iter(())
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> None:
        """Fetch a batch, forward, backward, update."""
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        self.optimizer.zero_grad()
        self.model(batch[0].view(self.shape)).square().mean().backward()
        self.optimizer.step()


def layers(kind: str) -> torch.nn.Module:
    """The model: twelve layers of 256."""
    torch.manual_seed(0)
    if kind == "linear":
        return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    layer = torch.nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def step(options: argparse.Namespace) -> Any:
    """Wall and processor time of a DDP step: {mode: {"wall": [ns], "cpu": [ns]}}; both ranks switch at the same steps.

    "bare again" is measured just like "desync": how far it is from "bare" shows what the method can tell apart.
    """
    recording = Recording(options)
    with recording.mode():
        plain = Training(options, dist.DebugLevel.OFF)
        detail = Training(options, dist.DebugLevel.DETAIL) if options.model == "linear" else None
    modes: dict[str, tuple[Mode, Callable[[], None]]] = {
        "bare": (nullcontext, plain.step),
        "empty hook": (empty_hook, plain.step),
        "desync": (recording.mode, plain.step),
        "bare again": (nullcontext, plain.step),
    }
    if detail is not None:
        modes["desync, DDP with DETAIL"] = (recording.mode, detail.step)
    result = _steps(modes, options.rounds)
    del plain, detail, modes
    dist.destroy_process_group()
    return result


def loop(options: argparse.Namespace) -> Any:
    """The same without DDP: a hand-written loop that reduces each gradient, in every mode."""
    recording = Recording(options)
    wrapped = detail_group()
    model = layers("linear")
    batch = torch.randn(BATCH, WIDTH)

    def train(group: dist.ProcessGroup | None) -> Callable[[], None]:
        def one_step() -> None:
            model.zero_grad()
            model(batch).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=group)

        return one_step

    modes: dict[str, tuple[Mode, Callable[[], None]]] = {
        "bare": (nullcontext, train(None)),
        "desync": (recording.mode, train(None)),
        "bare again": (nullcontext, train(None)),
        "DETAIL": (nullcontext, train(wrapped)),
    }
    result = _steps(modes, options.rounds)
    dist.destroy_process_group()
    return result


def _steps(modes: dict[str, tuple[Mode, Callable[[], None]]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """One step of each mode in every round, each after one that is not counted."""
    result: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in modes}
    names = list(modes)
    for turn in range(rounds + 2):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else reversed(order):
            mode, one_step = modes[name]
            with mode():
                one_step()
                wall, cpu = _now(), time.process_time_ns()
                one_step()
                cpu, wall = time.process_time_ns() - cpu, _now() - wall
            if turn >= 2:
                result[name]["wall"].append(wall)
                result[name]["cpu"].append(cpu)
    return result


def startup(options: argparse.Namespace) -> Any:
    """How long this process took to be ready for its first step, and its memory then."""
    connect(options)
    dist.all_reduce(torch.ones(1))
    ready = time.monotonic() - float(os.environ["BENCH_SPAWNED"])
    with open("/proc/self/status", encoding="ascii") as status:
        memory = {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith(("VmRSS", "RssAnon"))}
    dist.destroy_process_group()
    return {"ready_s": ready, "rss_kib": memory["VmRSS"], "anon_kib": memory["RssAnon"]}


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "operations": operations,
    "bare": bare,
    "step": step,
    "loop": loop,
    "startup": startup,
}

if __name__ == "__main__":
    main()
