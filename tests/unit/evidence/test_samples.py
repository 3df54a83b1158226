"""Logs with a known truth: of real jobs on torch 2.13 (gloo), and made ones in the wordings of other versions and launchers."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOGS = ROOT / "tests" / "data" / "logs"
NAMES = sorted(path.name.removesuffix(".truth.json") for path in LOGS.glob("*.truth.json"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("explain_samples", ROOT / "tools" / "explain_samples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_is_among_what_the_truth_allows(tool: ModuleType, name: str) -> None:
    place = next(each for each in (LOGS / name, LOGS / f"{name}.log") if each.exists())
    truth = json.loads((LOGS / f"{name}.truth.json").read_text(encoding="utf-8"))
    assert tool.judge(name, place, truth).wrong == ()


@pytest.mark.parametrize("name", [name for name in NAMES if (LOGS / f"{name}.log").exists()])
@pytest.mark.parametrize("collector", ["pdsh", "docker", "cri", "kubectl", "compose", "crlf"])
def test_what_collects_logs_changes_no_verdict(tool: ModuleType, tmp_path: Path, name: str, collector: str) -> None:
    lines = (LOGS / f"{name}.log").read_text(encoding="utf-8").split("\n")
    (tmp_path / "collected.log").write_bytes("".join(wrapped(collector, lines)).encode())
    truth = json.loads((LOGS / f"{name}.truth.json").read_text(encoding="utf-8"))
    assert tool.judge(name, tmp_path / "collected.log", truth).wrong == ()


def wrapped(collector: str, lines: list[str]) -> list[str]:
    """The lines as a collector of logs hands them on."""
    match collector:
        case "pdsh":
            return [f"node07: {line}\n" for line in lines]
        case "docker":
            return [json.dumps({"log": f"{line}\n", "stream": "stderr"}) + "\n" for line in lines]
        case "cri":
            return [piece for line in lines for piece in cri(line)]
        case "kubectl":
            return [f"[pod/train-worker-0/pytorch] {line}\n" for line in lines]
        case "compose":
            return [f"worker-3   | {line}\n" for line in lines]
        case _:
            return [f"{line}\r\n" for line in lines]


def cri(line: str) -> list[str]:
    """A line in the pieces in which a container's log holds it."""
    head = "2026-06-11T02:10:00.123456789Z stderr"
    pieces = [line[start : start + 400] for start in range(0, len(line), 400)] or [""]
    return [*(f"{head} P {piece}\n" for piece in pieces[:-1]), f"{head} F {pieces[-1]}\n"]
