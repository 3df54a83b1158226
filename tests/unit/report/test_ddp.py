from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from desync.model import Evidence, Group
from desync.report.build import build_report
from desync.report.ddp import build_ddp
from desync.report.ddp_advice import advise
from desync.report.ddp_picture import draw
from desync.report.ddp_text import render_ddp
from desync.report.json_format import from_json, to_json
from desync.report.model import BucketSpan, DdpTimes, Report, Timing
from tests.unit.report import ddp_samples as samples
from tests.unit.report.ddp_samples import TORCH, training
from tests.unit.report.report_samples import MS, diagnosis

GOLD = Path(__file__).with_name("gold") / "ddp_training.ddp.txt"


def report(evidence: Evidence) -> Report:
    return build_report(evidence, diagnosis([], {}), Timing())


def test_a_step_is_taken_apart_as_it_was_made() -> None:
    (entry,) = build_ddp(training())

    # Between forward's end at 8 ms and the last launch's return at 20.1 ms; communication from 15 ms until 31 ms.
    assert entry.measured == DdpTimes(0.04, 0.008, 0.0121, 0.016, 0.0051, 0.0109, 0.0)
    assert entry.torch == DdpTimes(None, 0.0081, 0.0122, 0.0161, 0.0052, 0.0109)
    assert entry.steps == 20  # the first two of each rank come before the buckets are settled
    assert [(one.parameters, one.bytes) for one in entry.buckets] == [
        (("fc.bias", "fc.weight"), 1 << 20),
        (("emb.weight",), 1 << 21),
    ]
    assert entry.picture is not None
    assert entry.picture.buckets == (BucketSpan(0, 0.015, 0.025), BucketSpan(1, 0.02, 0.03))
    assert (entry.picture.compute_end_s, entry.picture.optimizer_s) == (0.0201, 0.033)


def test_ends_of_buckets_that_were_not_seen_are_not_invented() -> None:
    (entry,) = build_ddp(training(timed=False))

    assert entry.picture is not None
    assert {span.completed_s for span in entry.picture.buckets} == {None}
    assert entry.measured is not None
    assert entry.measured.tail_s == 0.0109
    assert "end not seen" in render_ddp(report(training(timed=False)))
    assert [bar.kind for bar in draw(entry.picture).bars] == ["forward", "backward", "unseen", "unseen", "tail"]


def test_waiting_for_a_late_rank_is_told_apart_from_communication() -> None:
    (entry,) = build_ddp(training(late_ns=6 * MS))
    (skewed,) = build_ddp(training(skew={1: 3_600_000 * MS}))

    assert entry.measured is not None
    assert entry.measured.wait_s == pytest.approx(0.003)  # half of the ranks wait for 6 ms, the other for nothing
    assert skewed.measured is not None
    assert skewed.measured.wait_s == 0.0  # an hour between the machines' clocks is no lateness


@pytest.mark.parametrize(("backend", "shown_s"), [("gloo", 0.031), ("cpu:gloo,cuda:nccl", 0.036)])
def test_a_bucket_ends_before_a_backward_that_waits_for_it(backend: str, shown_s: float) -> None:
    late = training(late_ns=6 * MS)
    groups = {"default_pg": Group("default_pg", (0, 1), backend=backend)}
    only = replace(late, traces=(replace(late.traces[0], groups=groups),))

    (entry,) = build_ddp(only)

    assert entry.picture is not None
    assert entry.picture.buckets[-1].completed_s == pytest.approx(shown_s)


def advice(evidence: Evidence) -> str:
    (entry,) = build_ddp(evidence)
    return "\n".join(entry.advice)


def test_advice_says_what_the_records_show_and_only_that() -> None:
    usual = advice(training())
    assert "gradient_as_bucket_view=True" in usual
    assert "3 MiB less memory" in usual
    for word in ("set_epoch", "no_sync", "find_unused", "static_graph", "divided"):
        assert word not in usual

    assert "3 passes over Examples began in epoch 0" in advice(training(epochs=(0, 0, 0)))
    assert "set_epoch" not in advice(training(epochs=(0,)))
    assert "4 backward passes for each optimizer step" in advice(training(backwards_per_step=4))
    correct = advice(training(backwards_per_step=4, no_sync=3))
    assert "synchronised" not in correct
    assert "divided by that number" in correct

    unused = {"find_unused_parameters": True}
    assert "leave it out" in advice(training(module=unused))
    assert "is needed" in advice(training(module=unused, torch={**TORCH, "unused_parameter_size": 288}))
    assert "static_graph=True is possible" in advice(training(module=unused, torch={**TORCH, "can_set_static_graph": 1}))
    assert advice(training(torch={})) == (
        "27 % of the step is communication that no computation hides. Try other bucket sizes: tools/bucket_sweep.py measures "
        "them; or a comm hook that sends fewer bytes."
    )
    assert "waiting for a rank that comes later" in advice(training(late_ns=20 * MS, ranks=5))


def test_a_model_too_small_to_fill_a_bucket_is_not_told_to_tune_buckets() -> None:
    evidence = training(torch={**TORCH, "total_parameter_size_bytes": 8400})
    (entry,) = build_ddp(evidence)
    small = replace(entry, buckets=tuple(replace(one, bytes=4200) for one in entry.buckets))

    said = "\n".join(advise(small, evidence.traces[0].ddp[0], evidence.traces[0]).advice)

    assert "all gradients together are 8.2 KiB" in said
    assert "fewer synchronisations" in said
    assert "bucket_sweep" not in said
    assert "gradient_as_bucket_view" not in said


def test_the_text_is_the_kept_one_also_from_report_json_alone() -> None:
    made = samples.ddp_training().report()

    text = render_ddp(from_json(to_json(made)))

    if os.environ.get("DESYNC_REWRITE_GOLD"):
        GOLD.write_text(text, encoding="utf-8")
    assert text == GOLD.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 110


def test_a_job_without_ddp_says_so() -> None:
    made = training()
    bare = replace(made, traces=tuple(replace(trace, ddp=()) for trace in made.traces))

    assert render_ddp(report(bare)) == "No DistributedDataParallel module was recorded.\n"
