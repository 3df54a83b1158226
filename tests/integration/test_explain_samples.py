"""All samples with a known truth, where they lie beside the checkout; elsewhere `tools/explain_samples.py` reads any others."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
MAKE_DUMPS = SHARED / "tools" / "make_dumps.py"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the samples do not lie beside this checkout")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("explain_samples", ROOT / "tools" / "explain_samples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("folder", ["logs", "fr"])
def test_every_sample_gets_a_verdict_that_its_truth_allows(tool: ModuleType, folder: str) -> None:
    judged = [tool.judge(*each) for each in tool.samples(SHARED / folder)]
    assert judged
    assert [(each.name, each.wrong) for each in judged if each.wrong] == []


def test_jobs_drawn_by_chance_get_their_verdict(tool: ModuleType, tmp_path: Path) -> None:
    if not MAKE_DUMPS.is_file():
        pytest.skip("the program that makes dumps does not lie beside this checkout")
    judged = list(tool.drawn(MAKE_DUMPS, tmp_path, 12, seed=5))
    assert len(judged) > 6
    assert [(each.name, each.wrong) for each in judged if each.wrong] == []


@pytest.mark.parametrize(
    "fault", ["none", "skip", "extra", "shape", "dtype", "stalled", "dead", "cycle", "p2p", "root", "network"]
)
def test_made_dumps_of_every_fault_get_their_verdict(tool: ModuleType, tmp_path: Path, fault: str) -> None:
    if not MAKE_DUMPS.is_file():
        pytest.skip("the program that makes dumps does not lie beside this checkout")
    variants = {"": (), "rings": ("--vary-ring", "--rank", "9"), "bare": ("--no-frames",)}
    judged = list(tool.made(MAKE_DUMPS, tmp_path, faults=(fault,), variants=variants))
    assert len(judged) == 3
    assert [(each.name, each.wrong) for each in judged if each.wrong] == []
