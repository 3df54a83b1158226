"""The entry points of torch that docs/how-ddp-syncs.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "how-ddp-syncs.md"
ROW = re.compile(r"^\| `(torch/[^`]+)` \| `([^`]+)` \|", re.MULTILINE)


def source(path: str) -> str:
    """A Python file of the installed torch, or the header that it ships of a C++ one."""
    installed = Path(torch.__file__).parent.parent / path
    header = Path(torch.__file__).parent / "include" / path
    return (installed if installed.exists() else header).read_text(encoding="utf-8")


def test_every_entry_point_exists_in_torch() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))

    assert len(rows) > 15
    assert {path.rpartition("/")[2] for path, _ in rows} >= {"distributed.py", "reducer.hpp", "ProcessGroup.hpp"}
    missing = [name for path, name in rows if not re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", source(path))]
    assert missing == []
