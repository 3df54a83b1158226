"""Scenarios for real: torchrun, gloo, py-spy, under ``desync watch``, each with the verdict that its catalogue promises.

A few that differ in kind; ``desync scenarios run --all`` runs them all.
"""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from desync.diagnosis import diagnose
from desync.evidence.run_directory import load
from desync.model import Cause, Certainty, Status
from fault_scenarios.catalogue import SCENARIOS, Scenario
from fault_scenarios.runner import run
from tests.conftest import ROOT
from tests.cuts import all_cuts, cut

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
    _cut_in_half(tmp_path / "run", BY_NAME[name])


def _cut_in_half(run_directory: Path, scenario: Scenario) -> None:
    """What is left of the run, with parts of it cut away: nobody is blamed who should not be, and nothing is made up."""
    ended = load(run_directory)
    # The same at the time of the hang, before its end: what a report says that is made while the job still stands there.
    alive = replace(ended, ended=False, traces=tuple(replace(trace, exit=None) for trace in ended.traces))
    for seen in (ended, alive) if scenario.status is Status.HANG else (ended,):
        for names in all_cuts():
            for seed in range(4 if "two journals missing" in names else 1):
                findings = diagnose(cut(seen, names, seed)).findings
                blamed = {rank for finding in findings for rank in finding.culprit_ranks}
                assert blamed <= set(scenario.culprits), (names, seed, findings)
                sure = {finding.cause for finding in findings if finding.certainty is Certainty.PROVEN}
                # Without marks two loops around each other are not told apart (see the tests of the diagnosis).
                known = {scenario.cause, Cause.RANK_ONLY_COLLECTIVE} if "no marks" in names else {scenario.cause}
                assert sure <= known, (names, seed, findings)
