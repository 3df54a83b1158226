from __future__ import annotations

from dataclasses import replace

import pytest

from desync.report.clocks import align
from desync.report.lateness import build_lateness
from tests.unit.report import report_samples as samples
from tests.unit.report.ddp_samples import training
from tests.unit.report.report_samples import GRADIENTS, MS, Step, steps, trace

HOUR = 3_600_000 * MS


def test_the_rank_for_which_the_others_wait_stands_out() -> None:
    lateness = build_lateness(training(ranks=3, late_ns=6 * MS))

    assert lateness is not None
    assert (lateness.group, lateness.operations, lateness.aligned) == ("default_pg", 24, True)
    assert [(one.rank, one.median_s, one.worst_s) for one in lateness.ranks] == [(0, 0, 0), (1, 0, 0), (2, 0.006, 0.006)]
    assert [one.last for one in lateness.ranks] == [0, 0, 24]
    assert lateness.ranks[2].alone_s == pytest.approx(24 * 0.006)


def test_clocks_of_machines_are_compared_by_what_they_did_together() -> None:
    evidence = training(ranks=3, skew={1: HOUR, 2: -5 * HOUR})

    clocks = align(evidence)
    lateness = build_lateness(evidence)

    assert clocks.offsets == {"gpu-0": 0, "gpu-1": -HOUR, "gpu-2": 5 * HOUR}
    assert lateness is not None
    assert {one.worst_s for one in lateness.ranks} == {0.0}


def test_machines_without_anything_in_common_are_named() -> None:
    evidence = training(ranks=2, skew={1: HOUR})
    apart = replace(evidence, traces=(evidence.traces[0], replace(evidence.traces[1], operations=trace(1, []).operations)))

    assert align(apart).unaligned == ("gpu-1",)


def test_what_is_not_over_does_not_count() -> None:
    stuck = samples.uneven_inputs().evidence
    grouped = tuple(replace(one, groups={"default_pg": samples.Group("default_pg", (0, 1, 2, 3))}) for one in stuck.traces)

    lateness = build_lateness(replace(stuck, traces=grouped))

    assert lateness is not None
    assert lateness.operations == 16
    assert build_lateness(replace(stuck, traces=grouped[:1])) is None
    assert build_lateness(replace(stuck, traces=())) is None


def test_a_group_that_stands_twice_in_a_table_is_one_group() -> None:
    made = trace(0, [*steps(GRADIENTS, 2), Step(GRADIENTS, 3, "again")])
    table = replace(made.operations, groups=("default_pg", "default_pg"))
    group = {"default_pg": samples.Group("default_pg", (0, 1))}
    ranks = tuple(replace(made, rank=rank, operations=table, groups=group) for rank in range(2))

    lateness = build_lateness(replace(samples.healthy().evidence, traces=ranks))

    assert lateness is not None
    assert lateness.operations == 3
