"""docs/generated-jobs.md is what the tool prints: every kind of fault has its row, the rows add up, and nobody is innocent."""

from __future__ import annotations

import re
import sys

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from simulated_jobs import COLUMNS, SHAPES, TWO, TWO_ENDS  # the tools are scripts, not a package

PAGE = ROOT / "docs" / "generated-jobs.md"
TABLES = {"## Ten thousand jobs with a known fault": 10_000, "## Jobs whose loops have many turns": 10_000}


def table(heading: str) -> dict[str, dict[str, int]]:
    """The numbers of each kind of fault below a heading, by column."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index(heading)
    head = next(number for number, line in enumerate(lines) if number > first and line.startswith("| fault | jobs |"))
    assert [cell.strip() for cell in lines[head].split("|")[2:-3]] == ["jobs", *COLUMNS]
    found = {}
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            return found
        kind, *numbers = (cell.strip() for cell in line.split("|")[1:-3])
        found[kind] = dict(zip(("jobs", *COLUMNS), (int(number.replace(",", "")) for number in numbers), strict=True))
    return found


@pytest.mark.parametrize(("heading", "jobs"), TABLES.items())
def test_every_kind_has_its_share_of_the_jobs_and_the_rows_add_up(heading: str, jobs: int) -> None:
    rows = table(heading)
    assert set(rows) == {*SHAPES, TWO_ENDS, TWO, "all"}
    assert rows["all"]["jobs"] == jobs
    for kind, row in rows.items():
        assert sum(row[column] for column in COLUMNS) == row["jobs"], kind
        assert row["jobs"] >= jobs // len(rows), kind
    for column in ("jobs", *COLUMNS):
        assert sum(row[column] for kind, row in rows.items() if kind != "all") == rows["all"][column]


@pytest.mark.parametrize("heading", TABLES)
def test_no_innocent_is_blamed_in_it(heading: str) -> None:
    rows = table(heading)
    assert {kind: row["innocent"] for kind, row in rows.items() if row["innocent"]} == {}
    assert rows["none"]["right"] == rows["none"]["jobs"]


def test_the_commands_are_there() -> None:
    commands = re.findall(r"^    python (tools/\w+\.py)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 4
    assert all((ROOT / command).is_file() for command in commands)
