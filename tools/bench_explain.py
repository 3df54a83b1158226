#!/usr/bin/env python3
"""How fast `desync explain` reads dumps and logs, beside merely unpickling the dumps and beside torch's own analyser.

    bench_explain.py MAKE_DUMPS [--ranks 256] [--scale 64 256 1024] [--log-mb 1024] [--repeat 3]

MAKE_DUMPS is the program that makes flight-recorder dumps with a known fault.  Everything is measured in one run, each command
as a process of its own with all its children: wall time (the best of --repeat, for the machine may be shared), CPU time, and
the largest sum of resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

UNPICKLE = (
    "import pickle, sys, pathlib\nfor path in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n    pickle.loads(path.read_bytes())"
)
EVERY_S = 0.02
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""What is installed has its bytecode beside it; a checkout that may not keep any would be compiled anew for each process."""
STEP = (
    "step={:07d} loss={:.4f} lr=3.000e-04 grad_norm={:.3f} tok/s={} | data {:.1f} ms, forward {:.1f} ms, backward {:.1f} ms\n"
)


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    wall_s: float
    cpu_s: float
    memory_mb: float
    output: str


def measure(command: Sequence[str | Path], repeat: int = 1) -> Measured:
    """Run a command; the quickest of the runs counts."""
    return min((_once(command) for _ in range(repeat)), key=lambda each: each.wall_s)


def _once(command: Sequence[str | Path]) -> Measured:
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT)
        peak = cpu = 0.0
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            memory, used = _tree(watched)
            peak, cpu = max(peak, memory), max(cpu, used)
            time.sleep(EVERY_S)
        wall = time.perf_counter() - began
        output.seek(0)
        return Measured(wall, cpu, peak / 1e6, output.read())


def _tree(root: psutil.Process) -> tuple[float, float]:
    """Memory and CPU time of a process and its children, those that have ended included in the time."""
    memory = used = 0.0
    try:
        for process in (root, *root.children(recursive=True)):
            with process.oneshot():
                memory += process.memory_info().rss
                times = process.cpu_times()
                used += times.user + times.system + (times.children_user + times.children_system if process == root else 0)
    except psutil.Error:
        pass
    return memory, used


def make(program: Path, folder: Path, ranks: int) -> Path:
    """Dumps of so many ranks with one skipped operation."""
    place = folder / f"dumps-{ranks}"
    options = ["--ranks", str(ranks), "--tp", "8", "--pp", "4", "--fault", "skip"]
    subprocess.run([sys.executable, program, place, *options], check=True, capture_output=True)
    return place


def explain(place: Path, repeat: int) -> tuple[Measured, str]:
    """`desync explain` on a place, and its verdict."""
    measured = measure([sys.executable, "-m", "desync", "explain", "--format", "json", place], repeat)
    report = json.loads(measured.output)
    verdict, where = report["verdict"], report["divergence"]
    place_ = f", {where['op']} #{where['seq']}" if where else ""
    return measured, f"{len(report['findings'])} finding: {verdict['cause']}, ranks {verdict['culprit_ranks']}{place_}"


def beside(program: Path, folder: Path, ranks: int, repeat: int) -> None:
    """Unpickling, desync and torch's analyser on the same dumps."""
    place = make(program, folder, ranks)
    truth = json.loads((folder / f"{place.name}.truth.json").read_text(encoding="utf-8"))
    plain = measure([sys.executable, "-c", UNPICKLE, place], repeat)
    own, verdict = explain(place, repeat)
    torchs = measure([Path(sys.executable).with_name("torchfrtrace"), "--mismatch_cap", "100000000", place])
    said = torchs.output.count("Not all ranks joining") + torchs.output.count("Culprit rank")
    print(f"{ranks} ranks, one skipped operation on rank {truth['culprit_ranks']}, {truth['op']} #{truth['seq']}:\n")
    print("| | wall | CPU | memory | beside unpickling | says |\n|---|---|---|---|---|---|")
    rows = (("unpickling alone", plain, ""), ("desync explain", own, verdict), ("torchfrtrace", torchs, f"{said} errors"))
    for name, measured, words in rows:
        print(f"| {name} | {_cells(measured)} | {measured.wall_s / plain.wall_s:.1f} x | {words} |")
    faster, leaner = torchs.wall_s / own.wall_s, own.memory_mb / torchs.memory_mb
    print(f"\ndesync is {faster:.1f} times as fast as torchfrtrace, in {leaner:.2f} of its memory.\n")
    shutil.rmtree(place)


def _cells(measured: Measured) -> str:
    return f"{measured.wall_s:.1f} s | {measured.cpu_s:.1f} s | {measured.memory_mb:.0f} MB"


def growth(program: Path, folder: Path, sizes: Sequence[int]) -> None:
    """desync on jobs of different sizes."""
    print("| ranks | entries | wall | CPU | memory | CPU for 1,000 entries | says |\n|---|---|---|---|---|---|---|")
    for ranks in sizes:
        place = make(program, folder, ranks)
        own, verdict = explain(place, 1)
        print(f"| {ranks} | {ranks * 2000} | {_cells(own)} | {own.cpu_s / ranks / 2 * 1000:.1f} ms | {verdict} |")
        shutil.rmtree(place)
    print()


def log(folder: Path, megabytes: int, repeat: int) -> None:
    """A long log of a training that stops with a time-out at its end."""
    place = folder / "train.log"
    random_ = random.Random(1)
    with place.open("w", encoding="utf-8") as file:
        step = 0
        while file.tell() < megabytes * 1e6:
            for step in range(step, step + 5000):  # noqa: B020 - it goes on where it was
                numbers = [random_.random() for _ in range(5)]
                file.write(STEP.format(step, numbers[0], numbers[1], 41000 + step % 999, *(30 * each for each in numbers[2:])))
        for rank in (0, 1, 3):
            file.write(
                f"[rank{rank}]:[E611 02:55:33.075803794 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
                f"operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for "
                "600096 milliseconds before timing out.\n"
            )
    own, verdict = explain(place, repeat)
    print("| log | wall | CPU | memory | speed | says |\n|---|---|---|---|---|---|")
    print(f"| {megabytes} MB | {_cells(own)} | {megabytes / own.wall_s:.0f} MB/s | {verdict} |\n")
    place.unlink()


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="MAKE_DUMPS", type=Path)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--scale", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--log-mb", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {psutil.cpu_count()} CPUs, load {psutil.getloadavg()[0]:.1f} before the start.\n")
    with tempfile.TemporaryDirectory() as folder:
        beside(arguments.program, Path(folder), arguments.ranks, arguments.repeat)
        growth(arguments.program, Path(folder), arguments.scale)
        if arguments.log_mb:
            log(Path(folder), arguments.log_mb, arguments.repeat)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
