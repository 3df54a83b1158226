"""Random jobs with known faults, or none, observed at random moments: no innocent is ever blamed, and faults are found.

``make bench`` plays 10,000 of them (tools/simulated_jobs.py); docs/generated-jobs.md has what came of it.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from simulated_jobs import (  # the tools are scripts, not a package
    ENDS,
    FAULTS,
    TWO_ENDS,
    judge,
    kinds_of,
    play,
    played,
    render,
    shows,
)
from simulator import evidence

from desync.diagnosis import diagnose
from desync.model import Cause

from .jobs import Op, job, left, trace

FOUND = {"right", "late", "unsure"}
few = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 1 << 32)


@pytest.mark.parametrize("kind", FAULTS)
def test_no_innocent_is_blamed(kind: str) -> None:
    outcomes = [outcome for seed in range(60) if (outcome := play(seed, (kind,))) is not None]
    assert outcomes
    assert [outcome for outcome in outcomes if outcome.verdict == "innocent"] == []
    if kind in ENDS:
        assert {outcome.verdict for outcome in outcomes} <= FOUND
        assert any(outcome.verdict == "right" for outcome in outcomes)


@pytest.mark.parametrize(("kind", "seed"), [("unsent", 990017695)])
def test_nobody_who_was_blamed_once_is_blamed_again(kind: str, seed: int) -> None:
    """A rank in a recv, whose newest collective all had made: that others do more between two of them is not its fault."""
    outcome = play(seed, (kind,))
    assert outcome is not None
    assert outcome.verdict == "unsure", outcome


@few
@given(seed=seeds)
def test_a_job_without_a_fault_gets_no_finding(seed: int) -> None:
    outcome = play(seed, ())
    assert outcome is not None
    assert outcome.verdict == "right", outcome


@few
@given(seed=seeds, kind=st.sampled_from(FAULTS))
def test_of_one_fault_its_rank_is_blamed_or_nobody(seed: int, kind: str) -> None:
    outcome = play(seed, (kind,))
    assert outcome is None or outcome.verdict != "innocent", outcome


@few
@given(seed=seeds)
def test_of_two_ends_both_are_found_unless_it_is_unsure(seed: int) -> None:
    outcome = play(seed, kinds_of(TWO_ENDS, seed), rings_cut=False)
    # One of two may be hidden behind the other's exception: see the broadcast below.
    assert outcome is None or outcome.verdict in FOUND | {"partly"}, outcome


@few
@given(seed=seeds, kinds=st.tuples(st.sampled_from(FAULTS), st.sampled_from(FAULTS)))
def test_of_two_faults_of_any_kind_no_innocent_is_blamed(seed: int, kinds: tuple[str, str]) -> None:
    outcome = play(seed, kinds)
    assert outcome is None or outcome.verdict != "innocent", outcome


def test_a_rank_that_did_not_come_to_a_broadcast_that_waited_for_nobody_is_seen() -> None:
    """The source and those behind it in gloo's tree go on; they wait in the next call (a third of simulated jobs are so)."""
    spread, total = Op("broadcast", line=11, root=0), Op(line=12)
    came = [trace(rank, [total, spread, replace(total, done=False)]) for rank in (0, 1, 2)]
    finding = diagnose(job(*came, trace(3, [total]), frozen=(3,))).findings[0]
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (3,))
    gone = diagnose(job(*came, trace(3, [total], exit=left(2)))).findings[0]
    assert (gone.cause, gone.culprit_ranks) == (Cause.EXITED_EARLY, (3,))


def test_a_rank_that_waits_behind_such_a_broadcast_has_not_done_its_work() -> None:
    """Found in simulated jobs of two ranks, of which one exits too early."""
    spread = Op("broadcast", line=11, root=0)
    waits = trace(0, [spread, spread, Op("all_gather_into_tensor", line=20, done=False)], world=2)
    diagnosis = diagnose(job(waits, trace(1, [spread], world=2, exit=left(1)), frozen=(0,)))
    assert 0 not in {rank for finding in diagnosis.findings for rank in finding.culprit_ranks}


def test_what_is_played_is_worth_playing() -> None:
    """The programs are as different as they are said to be, and most of their faults come to pass."""
    jobs = [(kind, found[0]) for kind in FAULTS for seed in range(60) if (found := played(seed, (kind,))) is not None]
    worlds = {len(job.ranks) for _, job in jobs}
    assert min(worlds) == 2
    assert max(worlds) == 16
    assert any(len(job.plan.groups) > 2 for _, job in jobs)
    statements = {do.what for _, job in jobs for program in job.plan.programs for do in program}
    assert {"collective", "send", "recv", "wait", "mark", "pause"} <= statements
    shown = Counter(kind for kind, job in jobs if all(shows(job, truth) for truth in job.plan.truths))
    assert set(shown) == set(FAULTS) - {"dtype", "reduce_op", "swap"}, "these three may pass unnoticed"


def test_a_judge_who_could_not_condemn_would_prove_nothing() -> None:
    """The same jobs with the truth moved to another rank are judged to blame an innocent."""
    found = played(3, ("kill",))
    assert found is not None
    simulator, _ = found
    diagnosis = diagnose(evidence(simulator, simulator.end + 1))
    plan = simulator.plan
    assert judge(plan, diagnosis, plan.truths)[0] == "right"
    plan.truths = [replace(truth, rank=(truth.rank + 1) % len(simulator.ranks)) for truth in plan.truths]
    assert judge(plan, diagnosis, plan.truths)[0] == "innocent"
    plan.truths = []
    assert judge(plan, diagnosis, [])[0] == "innocent"


def test_the_table_counts_every_job_once() -> None:
    table = {"kill": Counter(right=3, late=1), "none": Counter(right=2), "skip": Counter(right=1, alike=2, near=1)}
    lines = render(table).splitlines()
    assert lines[2] == "| kill | 4 | 3 | 0 | 0 | 0 | 0 | 1 | 0 | 100.0 % | 100.0 % |"
    assert lines[-1].startswith("| all | 10 | 6 | 2 | 1 |")
    assert lines[4].endswith("| 25.0 % | 75.0 % |")
