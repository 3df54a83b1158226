from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from desync.model import Cause, Status
from fault_scenarios.catalogue import FOLDER, HANG_KILLED, PENDING, SCENARIOS

MODULES = ("__init__", "catalogue", "common", "faults", "healthy", "orders", "pending", "runner", "scenario", "standstills")
EVERY = (*SCENARIOS, *PENDING)
EXIT_STATUS = {Status.HEALTHY: 0, Status.MISMATCH: 0, Status.HANG: HANG_KILLED, Status.CRASH: 1}
NOBODYS = {Cause.COMMUNICATION_STALLED, Cause.GROUP_CREATION, Cause.GROUP_ORDER_CYCLE, Cause.P2P_MISMATCH}
"""Faults that can be everybody's: then nobody is the culprit."""


def test_catalogue_and_folder_agree() -> None:
    names = [scenario.name for scenario in EVERY]
    assert len(names) == len(set(names))
    programs = {path.name for path in FOLDER.glob("*.py") if path.stem not in MODULES}
    assert {scenario.program for scenario in EVERY} == programs


@pytest.mark.parametrize("scenario", EVERY, ids=lambda scenario: scenario.name)
def test_an_expectation_is_consistent(scenario: Any) -> None:
    healthy = scenario.status is Status.HEALTHY
    assert (scenario.cause is Cause.NONE) is healthy
    assert scenario.culprits == () if healthy else scenario.culprits or scenario.cause in NOBODYS
    never_started = scenario.cause is Cause.RENDEZVOUS
    assert set(scenario.culprits) < set(range(scenario.world_size + never_started))
    assert scenario.exit_status == EXIT_STATUS[scenario.status] or scenario.also
    line = scenario.call_site_line()
    # A rank that did not make the others' call has no line, and one that something outside ended is at none of its own.
    nowhere = healthy or scenario.outside_action is not None or scenario.cause in {Cause.RENDEZVOUS, Cause.GROUP_CREATION}
    assert (line is None) is (nowhere or not scenario.culprits)
    if line is not None:
        assert scenario.call_site in scenario.path.read_text().splitlines()[line - 1]
    assert len(scenario.shows) <= 80


def test_a_call_site_that_is_gone_or_ambiguous_is_an_error() -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.call_site)
    for text in ("no such line", "import"):
        with pytest.raises(ValueError, match="values to unpack"):
            replace(scenario, call_site=text).call_site_line()


def test_every_program_says_what_it_shows(run_command: Callable[..., Any]) -> None:
    # In one process, because each import of torch takes seconds.
    program = """
import pathlib, runpy, sys
for name in sys.argv[2:]:
    print("PROGRAM", name)
    sys.argv = [name, "--help"]
    sys.path.insert(0, str(pathlib.Path(name).parent))
    try:
        runpy.run_path(name, run_name="__main__")
    except SystemExit as ended:
        assert ended.code == 0
"""
    paths = sorted({str(scenario.path) for scenario in EVERY})
    done = run_command([sys.executable, "-c", program, "--", *paths])
    assert done.status == 0, done.output
    shown = done.stdout.split("PROGRAM ")[1:]
    assert len(shown) == len(paths)
    for text in shown:
        assert "torchrun --nproc-per-node" in text
        assert "--timeout-s" in text
