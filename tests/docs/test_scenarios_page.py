"""docs/scenarios.md is what the tool prints: every scenario has its row, with the verdict that the catalogue demands."""

from __future__ import annotations

import re

from fault_scenarios.catalogue import SCENARIOS
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "scenarios.md"


def rows() -> dict[str, list[str]]:
    """The cells of each scenario behind its name."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("| scenario | ranks |"))
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[head + 2 :] if line.startswith("|"))
    return {name: rest for name, *rest in cells}


def test_every_scenario_is_there_with_its_verdict() -> None:
    found = rows()
    assert list(found) == [scenario.name for scenario in SCENARIOS]
    for scenario in SCENARIOS:
        ranks, verdict, culprits = found[scenario.name][:3]
        assert (ranks, verdict) == (str(scenario.world_size), f"{scenario.status.value}, {scenario.cause.value}")
        assert culprits == (", ".join(map(str, scenario.culprits)) or "—")


def test_every_run_was_as_expected_or_is_told_of() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, cells in rows().items():
        told = re.fullmatch(r"(\d+) of (\d+)", cells[3])
        assert told is not None, name
        assert told[1] == told[2] or f"- {name} " in text, name
