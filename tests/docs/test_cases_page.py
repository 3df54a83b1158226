"""docs/cases.md has each case once, under a cause whose page knows it, and what it names as its cover is there."""

from __future__ import annotations

import ast
import json
import re

import pytest

from desync.model import Cause
from fault_scenarios.catalogue import PENDING, SCENARIOS
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "cases.md"
CAUSES = ROOT / "docs" / "causes"
CASES = ROOT.parent / "shared" / "cases.jsonl"
DRIFT = "Not told: replicas that drift apart"
NOT_YET = "not yet told right"


def rows() -> list[tuple[str, str, list[str]]]:
    """Cause, id and the other cells of each case."""
    found, cause = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            cause = "replica_drift" if line[3:] == DRIFT else line[3:]
        elif match := re.match(r"\| `([\w-]+)` \| (.*) \|$", line):
            found.append((cause, match[1], [cell.strip() for cell in match[2].split(" | ")]))
    return found


def scenarios(cover: str) -> list[str]:
    """The scenarios that a cell names."""
    return [
        name
        for part in re.findall(r"scenarios? ((?:`\w+`(?: \([^)]*\))?(?:, )?)+)", cover)
        for name in re.findall(r"`(\w+)`", part)
    ]


def named_tests(cover: str) -> list[str]:
    return re.findall(r"`((?:unit|integration)/[\w/]+\.py(?:::\w+)?)`", cover)


def test_every_case_is_there_once() -> None:
    if not CASES.is_file():
        pytest.skip("the cases do not lie beside this checkout")
    wanted = [json.loads(line)["id"] for line in CASES.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert sorted(case for _, case, _ in rows()) == sorted(wanted)


def test_every_row_says_what_happened_what_covers_it_and_what_is_said() -> None:
    assert len(rows()) == 70
    for cause, case, cells in rows():
        assert len(cells) == 3, case
        assert all(cells), case
        assert cause in {each.value for each in Cause}, case
        cover = cells[1]
        assert scenarios(cover) or named_tests(cover) or cover.startswith("not covered"), case


def test_what_covers_a_case_exists() -> None:
    known = {scenario.name for scenario in (*SCENARIOS, *PENDING)}
    missing = []
    for _, case, (_, cover, _) in rows():
        missing += [(case, name) for name in scenarios(cover) if name not in known]
        for place in named_tests(cover):
            file, _, name = place.partition("::")
            path = ROOT / "tests" / file
            functions = (
                {node.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)}
                if path.is_file()
                else set()
            )
            if not path.is_file() or (name and name not in functions):
                missing.append((case, place))
    assert missing == []


def test_what_is_not_told_right_yet_says_so() -> None:
    pending = {scenario.name for scenario in PENDING}
    silent = [case for _, case, (_, cover, says) in rows() if pending & set(scenarios(cover)) and NOT_YET not in cover + says]
    assert silent == []


def test_the_page_of_a_cause_knows_its_cases() -> None:
    for cause, case, _ in rows():
        assert f"`{case}`" in (CAUSES / f"{cause}.md").read_text(encoding="utf-8").partition("## Reported in public")[2], case
    cases = {case for _, case, _ in rows()}
    for page in CAUSES.glob("*.md"):
        told = re.findall(r"`([\w-]+)`", page.read_text(encoding="utf-8").partition("## Reported in public")[2])
        assert set(told) <= cases, page.name


def test_what_is_said_is_what_the_scenario_must_get() -> None:
    causes = {scenario.name: scenario.cause for scenario in (*SCENARIOS, *PENDING)}
    wrong = []
    for _, case, (_, cover, says) in rows():
        for name in scenarios(cover):
            if causes.get(name) not in (None, Cause.NONE) and f"`{causes[name].value}`" not in says:
                wrong.append((case, name, causes[name].value))
    assert wrong == []
