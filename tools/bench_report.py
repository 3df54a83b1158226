#!/usr/bin/env python3
"""How long the report of a large job takes, and how large its renderings are.

    python tools/bench_report.py [--ranks 64 512 1024] [--operations 2000] [--repeat 5]

The made-up training of bench_diagnosis.py with a stalled rank, with a stack of each rank (one in four differs from the others)
and a DDP module.  Its diagnosis is not counted.  Times are seconds of the processor: all of it is one thread that waits for
nothing.  Prints Markdown: the median, in brackets the least and the most.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_diagnosis import BUCKETS, START, made_up
from rich.console import Console

from desync.diagnosis import diagnose
from desync.model import DdpModule, Diagnosis, Evidence, Frame, RankStacks, Stack
from desync.report.build import build_report
from desync.report.html import render_html
from desync.report.json_format import from_json, to_json
from desync.report.markdown import render_markdown
from desync.report.model import Report, Timing
from desync.report.terminal import render
from desync.report.timeline import render_timeline

PARTS = ("report", "JSON", "HTML", "terminal", "Markdown")
"""What `desync watch` does at the end of a run, but for the Markdown."""


def job(ranks: int, operations: int) -> Evidence:
    """The evidence of a job whose stacks differ."""
    parameters = tuple(f"layers.{number // 2}.{'weight' if number % 2 else 'bias'}" for number in range(3 * len(BUCKETS)))
    buckets = tuple(tuple(range(3 * number, 3 * number + 3)) for number in range(len(BUCKETS)))
    module = DdpModule("model", "default_pg", parameters, buckets, False, False)
    made = made_up(ranks, operations, "stalled")
    traces = tuple(replace(trace, ddp=(module,)) for trace in made.traces)
    return replace(made, traces=traces, stacks=tuple(map(_stacks, range(ranks))))


def _stacks(rank: int) -> RankStacks:
    inner = Frame("wait", "/job/loader.py", rank) if rank % 4 == 0 else Frame("backward", "/job/train.py", 110)
    below = tuple(Frame(f"call_{depth}", f"/opt/env/lib/python3.11/site-packages/torch/m{depth}.py", 10) for depth in range(12))
    outer = (inner, Frame("main", "/job/train.py", 200), Frame("<module>", "/job/train.py", 210))
    worker = Stack("pin_memory", (Frame("run", "/opt/env/lib/python3.11/threading.py", 982), *below))
    return RankStacks(rank, "py-spy", START, (Stack("MainThread", (*below, *outer)), worker))


def measured(evidence: Evidence, repeat: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of the processor that each part took, and sizes in bytes."""
    diagnosis = diagnose(evidence)
    took: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for _ in range(repeat):
        for name, (seconds, made) in _once(evidence, diagnosis).items():
            took.setdefault(name, []).append(seconds)
            sizes[name] = len(made.encode())
    took["all"] = [sum(parts) for parts in zip(*(took[name] for name in PARTS), strict=True)]
    return took, sizes


def _once(evidence: Evidence, diagnosis: Diagnosis) -> dict[str, tuple[float, str]]:
    """Each part with its seconds and its text."""
    began = time.process_time()
    report = build_report(evidence, diagnosis, Timing(START, 1.2, 1.9))
    made = {"report": (time.process_time() - began, "")}
    parts: dict[str, Callable[[], str]] = {
        "JSON": lambda: to_json(report),
        "HTML": lambda: render_html(report, "/job"),
        "terminal": lambda: _on_terminal(report),
        "Markdown": lambda: render_markdown(report, base="/job"),
        "JSON read and written": lambda: to_json(from_json(made["JSON"][1])),
        "timeline": lambda: render_timeline(evidence),
    }
    for name, part in parts.items():
        gc.collect()
        began = time.process_time()
        text = part()
        made[name] = (time.process_time() - began, text)
    return made


def _on_terminal(report: Report) -> str:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        render(report, console)
    return captured.get()


def table(sizes: list[int], operations: int, repeat: int) -> str:
    """The Markdown table."""
    columns = ("all", *PARTS, "JSON read and written", "timeline")
    lines = [f"| ranks | {' | '.join(f'{name}, s' for name in columns)} | report.html, MB | report.json, MB |"]
    lines.append("|" + "---:|" * (len(columns) + 3))
    for ranks in sizes:
        took, size = measured(job(ranks, operations), repeat)
        cells = [f"{statistics.median(took[name]):.2f} ({min(took[name]):.2f}-{max(took[name]):.2f})" for name in columns]
        lines.append(f"| {ranks} | {' | '.join(cells)} | {size['HTML'] / 1e6:.2f} | {size['JSON'] / 1e6:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Print the machine and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 512, 1024], help="sizes of the job")
    parser.add_argument("--operations", type=int, default=2000, help="of each rank")
    parser.add_argument("--repeat", type=int, default=5, help="how often each is measured")
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors; {arguments.repeat} times")
    print()
    print(table(arguments.ranks, arguments.operations, arguments.repeat))


if __name__ == "__main__":
    main()
