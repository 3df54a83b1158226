from __future__ import annotations

from dataclasses import replace

import pytest

from desync.report.clocks import align
from desync.report.lateness import build_lateness
from desync.report.view import late_line
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
    assert (lateness.ranks[2].longest_s, lateness.ranks[2].longest_seq) == (0.006, lateness.operations - 23)
    assert (lateness.ranks[0].longest_s, lateness.ranks[0].longest_seq) == (0.0, None)


@pytest.mark.parametrize(
    ("late_ns", "aligned", "said"),
    [(3_000 * MS, True, True), (1_900 * MS, True, False), (0, True, False), (3_000 * MS, False, False)],
)
def test_a_healthy_report_says_who_was_late_and_that_it_came(late_ns: int, aligned: bool, said: bool) -> None:
    report = samples.healthy().report()
    lateness = build_lateness(training(ranks=3, late_ns=late_ns))
    assert lateness is not None
    line = late_line(replace(report, lateness=replace(lateness, aligned=aligned)))
    assert (line is not None) is said
    if line is not None:
        assert line.startswith("rank 2 let the others wait 3.0 s for it alone, 1 min 12 s in all, and came")


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
