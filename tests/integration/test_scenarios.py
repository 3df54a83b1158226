"""Scenarios for real: torchrun, gloo, py-spy, under ``desync watch``, each with the verdict that its catalogue promises.

A few that differ in kind; ``desync scenarios run --all`` runs them all.
"""

import json

import jsonschema
import pytest

from fault_scenarios.catalogue import SCENARIOS
from fault_scenarios.runner import run
from tests.conftest import ROOT

CHOSEN = ("uneven_data", "shape_mismatch", "killed", "stuck_loader", "healthy_ddp")
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.job
@pytest.mark.parametrize("name", CHOSEN)
def test_the_verdict_is_the_promised_one(name, tmp_path):
    shown = []
    outcome = run(BY_NAME[name], tmp_path / "run", show=shown.append)
    said = b"".join(shown).decode(errors="replace")
    assert outcome.problem is None, said
    assert [check for check in outcome.checks if not check.passed] == [], said
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    jsonschema.validate(report, SCHEMA)
    if report["verdict"]["status"] == "hang":
        assert {rank for stack in report["stacks"] for rank in stack["ranks"]} == set(range(BY_NAME[name].world_size))
