"""The made-up jobs whose diagnosis is measured are what the benchmark says, from memory and from journals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from desync.diagnosis import diagnose

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

from bench_diagnosis import FAULTS, made_up, read_journals, table, write_journals

RANKS, OPERATIONS = 16, 160


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_in_what_is_measured(fault: str, tmp_path: Path) -> None:
    write_journals(tmp_path, RANKS, OPERATIONS, fault)
    seen = [made_up(RANKS, OPERATIONS, fault), read_journals(tmp_path, RANKS, OPERATIONS)]
    for evidence in seen:
        blamed = {rank for finding in diagnose(evidence).findings for rank in finding.culprit_ranks}
        assert blamed == (set() if fault == "none" else {RANKS // 3})
    made, read = ([len(trace.operations) for trace in evidence.traces] for evidence in seen)
    assert made == read
    assert sum(made) > RANKS * (OPERATIONS - 20)


def test_no_two_ranks_share_what_is_measured() -> None:
    tables = [trace.operations for trace in made_up(RANKS, OPERATIONS, "none").traces]
    assert len({id(each.entered) for each in tables}) == RANKS
    assert len({id(call) for each in tables for call in each.calls}) == sum(len(each.calls) for each in tables)


def test_the_table_has_a_row_for_each_size() -> None:
    lines = table(["stalled"], [8, 16], OPERATIONS, repeat=1, journals=True).splitlines()
    assert len(lines) == 4
    assert all("stalled_rank, ranks" in line for line in lines[2:])
    assert [len(line.split("|")) for line in lines[2:]] == [len(lines[0].split("|"))] * 2
