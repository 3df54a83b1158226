"""What recording costs: ``make bench``, or ``python tools/bench_recorder.py [--quick]``.

Everything is measured side by side in one run, in rounds in which every mode has its turn, and compared within the round.  A
number is the median over the rounds; in brackets are the quartiles.  "Added" is the difference to "bare" of the same round.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STARTUP = HERE.parent / "desync" / "recorder" / "startup"
TIMEOUT_S = 1200
STEPS = (
    ("DDP, linear layers", "step", "linear", 2, 400),
    ("DDP, linear layers, one rank", "step", "linear", 1, 400),
    ("DDP, transformer layers", "step", "transformer", 2, 120),
    ("hand-written all_reduce loop", "loop", "linear", 2, 200),
)
"""Program, part of bench_rank, model, ranks, rounds.  One rank waits for nobody, so that its numbers spread least."""
SWITCHES = ("TORCH_DISTRIBUTED_DEBUG", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "RANK", "WORLD_SIZE")


def main() -> int:
    """Measure every part and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions: shows that it works, not what it costs")
    parser.add_argument("--only", nargs="*", choices=sorted(PARTS), help="these parts only")
    options = parser.parse_args()
    print(surroundings(), flush=True)
    for name, part in PARTS.items():
        if not options.only or name in options.only:
            print(f"\n{part(options.quick)}", flush=True)
    return 0


def surroundings() -> str:
    """The machine and the versions, in one line."""
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    torch = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    versions = f"Python {platform.python_version()}, torch {torch}"
    return f"{os.cpu_count()} cores ({model}), {versions}, load before the run {os.getloadavg()[0]:.1f}"


def operations(quick: bool) -> str:
    """Cost of one operation on one rank of the fake backend and on two ranks of gloo."""
    parts = []
    for backend, size, rounds in (("fake", 1, 60), ("gloo", 2, 60)):
        result = ranks("operations", size, rounds=2 if quick else rounds, backend=backend)
        processes = flight_recorder(backend, size, int(backend == "fake") if quick else 7)
        parts.append(f"### One operation, {backend}, {'one rank' if size == 1 else 'two ranks'} (µs)\n")
        parts.append(operation_table(result, processes))
    return "\n".join(parts)


def operation_table(result: dict[str, dict[str, list[float]]], processes: dict[str, dict[str, list[float]]]) -> str:
    """A row for each operation and mode, with the flight recorder's below them."""
    rows = []
    for operation, modes in result.items():
        bare = modes["bare"]
        empty = differences(modes["empty hook"], bare)
        recording = statistics.median(differences(modes["desync"], bare))
        for mode, values in modes.items():
            added = differences(values, bare)
            ratio = [cost / hook for cost, hook in zip(added, empty, strict=True) if hook > 0]
            rows.append(
                [
                    operation,
                    mode,
                    spread(values, 1e3),
                    "" if mode == "bare" else spread(added, 1e3),
                    f"{statistics.median(ratio):.2f}" if ratio and mode.startswith("desync") else "",
                    f"{statistics.median(added) / recording:.0f}" if mode == "DETAIL" and recording > 0 else "",
                ]
            )
        rows += flight_recorder_rows(operation, processes.get(operation, {}))
    return table(["operation", "mode", "total", "added to bare", "times empty hook", "times desync"], rows)


def flight_recorder_rows(operation: str, values: dict[str, list[float]]) -> list[list[str]]:
    """Bare, in processes with torch's flight recorder off and on."""
    return [
        [
            operation,
            f"flight recorder {mode}*",
            spread(numbers, 1e3),
            spread(differences(numbers, values["off"]), 1e3) if mode == "on" else "",
            "",
            "",
        ]
        for mode, numbers in values.items()
    ]


def flight_recorder(backend: str, size: int, pairs: int) -> dict[str, dict[str, list[float]]]:
    """{operation: {"off" or "on": [ns in each process]}}.

    Its size is fixed when a process starts, so that pairs of processes have to be compared.
    """
    result: dict[str, dict[str, list[float]]] = {}
    for pair in range(pairs):
        for mode in ("off", "on") if pair % 2 else ("on", "off"):
            slots = {"TORCH_FR_BUFFER_SIZE": "2000" if mode == "on" else "0"}
            for operation, cost in ranks("bare", size, backend=backend, environment=slots).items():
                result.setdefault(operation, {"off": [], "on": []})[mode].append(cost)
    return result


def training_step(quick: bool) -> str:
    """A step of DDP, and of a hand-written loop."""
    rows = []
    for program, part, model, size, rounds in STEPS:
        if not (quick and model == "transformer"):
            rows += step_rows(program, ranks(part, size, rounds=2 if quick else rounds, model=model))
    setting = "two ranks unless it says one, gloo: 12 layers of 256, 64 samples or tokens"
    title = f"### A training step, {setting} (ms; switched from step to step)\n"
    heading = ["program", "mode", "wall time", "added (%)", "processor time", "added (%)", "added processor time (µs)"]
    return title + "\n" + table(heading, rows)


def step_rows(program: str, result: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    """A row for each mode."""
    return [
        [
            program,
            mode,
            spread(values["wall"], 1e6),
            "" if mode == "bare" else percent(values["wall"], result["bare"]["wall"]),
            spread(values["cpu"], 1e6),
            "" if mode == "bare" else percent(values["cpu"], result["bare"]["cpu"]),
            "" if mode == "bare" else spread(differences(values["cpu"], result["bare"]["cpu"]), 1e3),
        ]
        for mode, values in result.items()
    ]


def start_up(quick: bool) -> str:
    """Time until a rank is ready, and its memory, with and without the recorder."""
    pairs = 1 if quick else 9
    plain: dict[str, list[float]] = {}
    watched: dict[str, list[float]] = {}
    for pair in range(pairs):
        for collect, with_recorder in ((plain, False), (watched, True))[:: 1 if pair % 2 else -1]:
            for name, value in started(with_recorder).items():
                collect.setdefault(name, []).append(value)
    names = {
        "python_s": ("a Python process that never imports torch (ms)", 1e-3),
        "ready_s": ("from the start of the process to its first all_reduce done (ms)", 1e-3),
        "whole_s": ("the whole process, exit included (ms)", 1e-3),
        "rss_kib": ("resident memory, journal included (MiB)", 1024),
        "anon_kib": ("resident memory that is no file (MiB)", 1024),
        "journal_bytes": ("size of the journal's file (MiB)", 1 << 20),
    }
    rows = [
        [title, spread(plain[name], unit), spread(watched[name], unit), spread(differences(watched[name], plain[name]), unit)]
        for name, (title, unit) in names.items()
    ]
    return "### Start and memory of one rank (gloo)\n\n" + table(["", "plain", "with the recorder", "added"], rows)


def started(with_recorder: bool) -> dict[str, float]:
    """One process started as a rank, and one that only starts."""
    with tempfile.TemporaryDirectory(prefix="desync-bench-") as folder:
        extra = {"PYTHONPATH": f"{STARTUP}{os.pathsep}{HERE.parent}", "DESYNC_RUN_DIR": folder} if with_recorder else {}
        environment = surrounding_environment(extra)
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
        python_s = time.monotonic() - begin
        begin = time.monotonic()
        result: dict[str, float] = ranks("startup", 1, environment=extra)
        whole_s = time.monotonic() - begin
        journals = sum(path.stat().st_size for path in Path(folder).glob("journals/*.journal"))
    return {**result, "python_s": python_s, "whole_s": whole_s, "journal_bytes": journals}


def surrounding_environment(extra: dict[str, str]) -> dict[str, str]:
    """The environment of this process without what would switch something on, one thread for each rank, and ``extra``."""
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES and not name.startswith("DESYNC_")}
    return {**kept, "OMP_NUM_THREADS": "1", "BENCH_SPAWNED": str(time.monotonic()), **extra}


def ranks(
    part: str,
    size: int,
    *,
    rounds: int = 1,
    backend: str = "gloo",
    model: str = "linear",
    environment: dict[str, str] | None = None,
) -> Any:
    """What rank 0 of a job of ``size`` ranks measured.  Raises SystemExit if a rank failed."""
    extra = dict(environment or {})
    if part in ("operations", "loop"):
        extra["DESYNC_TORCH_WRAPPER"] = "1"  # the wrapper is what is measured
    with tempfile.TemporaryDirectory(prefix="desync-bench-") as folder:
        out = os.path.join(folder, "numbers.json")
        command = [sys.executable, "-W", "ignore", str(HERE / "bench_rank.py"), part, "--backend", backend, "--model", model]
        command += ["--size", str(size), "--rounds", str(rounds), "--store", os.path.join(folder, "store"), "--out", out]
        environ = surrounding_environment(extra)
        processes = [subprocess.Popen([*command, "--rank", str(rank)], env=environ) for rank in range(size)]
        try:
            for process in processes:
                process.wait(timeout=TIMEOUT_S)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if not os.path.exists(out):
            raise SystemExit(f"measuring {part} failed: exit statuses {[process.returncode for process in processes]}")
        return json.loads(Path(out).read_text(encoding="utf-8"))


def differences(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Round by round."""
    return [value - other for value, other in zip(values, base, strict=True)]


def spread(values: Sequence[float], unit: float) -> str:
    """Median and quartiles in a unit."""
    low, middle, high = quartiles([value / unit for value in values])
    digits = 1 if abs(middle) < 100 else 0
    digits += 1 if abs(middle) < 10 else 0
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def percent(values: Sequence[float], base: Sequence[float]) -> str:
    """Median of the rounds' relative differences, its 95 % confidence interval, and the quartiles."""
    relative = sorted(100 * (value / other - 1) for value, other in zip(values, base, strict=True))
    low, middle, high = quartiles(relative)
    # Order statistics around the median that enclose it with 95 % probability, whatever the distribution is.
    half = 0.98 * len(relative) ** 0.5
    first = relative[max(0, round(len(relative) / 2 - half))]
    last = relative[min(len(relative) - 1, round(len(relative) / 2 + half))]
    return f"{middle:+.2f} ({first:+.2f} to {last:+.2f}) [{low:+.1f}, {high:+.1f}]"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


PARTS: dict[str, Callable[[bool], str]] = {"operations": operations, "step": training_step, "start": start_up}

if __name__ == "__main__":
    sys.exit(main())
