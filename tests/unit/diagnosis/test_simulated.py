"""Random jobs with a known fault, or none, observed at random moments: no innocent is ever blamed."""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from simulated_jobs import ENDS, FAULTS, play  # the tools are scripts, not a package


@pytest.mark.parametrize("kind", [None, *FAULTS])
def test_no_innocent_is_blamed(kind):
    kinds = () if kind is None else (kind,)
    outcomes = [outcome for seed in range(60) if (outcome := play(seed, kinds)) is not None]
    assert outcomes
    assert [outcome for outcome in outcomes if outcome.verdict == "innocent"] == []
    if kind in (None, *ENDS):
        assert {outcome.verdict for outcome in outcomes} <= {"right", "late", "unsure"}
        assert any(outcome.verdict == "right" for outcome in outcomes)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32), kinds=st.sampled_from([(one, two) for one in ENDS for two in ENDS if one != two]))
def test_two_faults_at_once(seed, kinds):
    outcome = play(seed, kinds)
    assert outcome is None or outcome.verdict != "innocent", outcome
