"""The benchmark runs and prints every row of its tables; what it costs is for docs/performance.md, not for a test."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODES = {"bare", "empty hook", "desync"}


@pytest.mark.job
@pytest.mark.timeout(300)
def test_the_quick_benchmark_measures_every_mode_of_every_part(run_command):
    finished = run_command([sys.executable, ROOT / "tools" / "bench_recorder.py", "--quick"], timeout_s=280)
    assert finished.status == 0, finished.output

    rows = _rows(finished.stdout)
    fake, gloo, step, start = (rows[title] for title in rows)
    assert _modes(fake, "all_reduce, 256 Ki") == MODES | {"flight recorder off*", "flight recorder on*"}
    assert _modes(gloo, "send and recv, 1 Ki") == MODES | {"desync + completion", "DETAIL"}
    assert _modes(step, "DDP, linear layers") == MODES | {"bare again", "desync, DDP with DETAIL"}
    assert _modes(step, "hand-written all_reduce loop") == {"bare", "desync", "bare again", "DETAIL"}
    numbers = [float(number) for row in fake + gloo for number in re.findall(r"^[\d.]+", row[2])]
    assert len(numbers) == len(fake + gloo)
    assert min(numbers) > 0
    journal = next(row for row in start if row[0].startswith("size of the journal"))
    assert float(journal[1].split()[0]) == 0 < float(journal[2].split()[0]), "recorded only where the recorder was on"


def _rows(markdown: str) -> dict[str, list[list[str]]]:
    """The cells of each table's rows, by its title."""
    tables: dict[str, list[list[str]]] = defaultdict(list)
    title = ""
    for line in markdown.splitlines():
        if line.startswith("### "):
            title = line
        elif line.startswith("| ") and not line.startswith("| ---"):
            tables[title].append([cell.strip() for cell in line.strip("|").split("|")])
    return {title: rows[1:] for title, rows in tables.items()}


def _modes(rows: list[list[str]], program: str) -> set[str]:
    return {row[1] for row in rows if row[0] == program}
