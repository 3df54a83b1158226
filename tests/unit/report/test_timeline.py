from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from desync.model import Evidence, Failure, Mark, MarkKind
from desync.report import timeline
from desync.report.timeline import render_timeline
from tests.unit.report import report_samples as samples
from tests.unit.report.ddp_samples import training
from tests.unit.report.report_samples import MS, START

NEEDED = {"X": {"dur"}, "i": {"s"}, "M": {"args"}, "s": {"id"}, "t": {"id", "bp"}, "f": {"id", "bp"}}
"""What the format demands of each phase, besides name, ph, pid and tid."""


def events_of(evidence: Evidence) -> list[dict[str, Any]]:
    """The events, after a check against the format."""
    content = json.loads(render_timeline(evidence))
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    for event in content["traceEvents"]:
        assert NEEDED[event["ph"]] <= set(event), event
        assert type(event["name"]) is str
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        if event["ph"] != "M":
            assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        assert event.get("s", "t") in ("g", "p", "t")
    check_nesting(content["traceEvents"])
    check_flows(content["traceEvents"])
    return content["traceEvents"]


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Slices of one track lie inside each other or apart."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        open_ends: list[float] = []
        for start, end in sorted(slices, key=lambda slice_: (slice_[0], -slice_[1])):
            while open_ends and open_ends[-1] <= start + 0.001:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.001
            open_ends.append(end)


def check_flows(events: list[dict[str, Any]]) -> None:
    """Each flow begins once and ends once, forward in time, at slices of other processes."""
    starts = {(event["pid"], event["tid"], event["ts"]) for event in events if event["ph"] == "X"}
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    for steps in flows.values():
        assert [step["ph"] for step in steps] == ["s", *["t"] * (len(steps) - 2), "f"]
        assert [step["ts"] for step in steps] == sorted(step["ts"] for step in steps)
        assert len({step["pid"] for step in steps}) == len(steps)
        assert all((step["pid"], step["tid"], step["ts"]) in starts for step in steps)


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_every_sample_is_in_the_format(name: str) -> None:
    events_of(samples.SAMPLES[name]().evidence)


def test_operations_marks_and_what_joins_them_are_there() -> None:
    events = events_of(training(ranks=3, count=2, late_ns=2 * MS))

    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert names == {"program", "default_pg", "default_pg (2)"}  # two buckets overlap
    first = [event for event in events if event["name"] == "all_reduce 1"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in first] == [(0, 15e3, 12e3), (1, 15e3, 12e3), (2, 17e3, 10e3)]
    assert first[0]["args"]["bucket"] == "DDP bucket 0: fc.bias, fc.weight"
    assert first[0]["args"]["called at"] == "/data/ada/project/train.py:42 in train_epoch"
    calls = [event for event in events if event["name"] == "call"]
    assert {event["dur"] for event in calls} == {100}
    assert [event["name"] for event in events if event["pid"] == 0 and event["tid"] == 1 and event["ph"] != "M"] == [
        "forward",
        "backward",
        "optimizer step",
    ] * 2
    assert sum(event["ph"] == "s" for event in events) == 4
    assert sum(event["ph"] == "t" for event in events) == 4


def test_an_operation_that_is_not_over_lasts_to_the_end_and_looks_so() -> None:
    base = samples.uneven_inputs().evidence
    observed = replace(base, observed_at=START + 10_000 * MS)

    waiting = [event for event in events_of(observed) if event.get("args", {}).get("state") == "waiting"]

    assert [event["pid"] for event in waiting] == [0, 1, 3]
    assert {event["cname"] for event in waiting} == {"terrible"}
    assert all(event["ts"] + event["dur"] == pytest.approx(10_000_000) for event in waiting)


def test_clocks_of_machines_are_aligned() -> None:
    evidence = training(ranks=2, skew={1: 3_600_000 * MS})

    content = json.loads(render_timeline(evidence))

    assert content["otherData"]["clock_offsets_ns"] == {"gpu-0": 0, "gpu-1": -3_600_000 * MS}
    starts = [event["ts"] for event in content["traceEvents"] if event["name"] == "all_reduce 5"]
    assert starts == [95e3, 95e3]


def test_a_send_and_its_receive_are_joined_and_two_sends_are_not() -> None:
    events = events_of(samples.deadlock_of_sends().evidence)

    joined = sorted(event["ph"] for event in events if event["ph"] in "stf")
    assert joined == ["f"] * 3 + ["s"] * 3  # the all_reduce, and both first sends with their receives


def test_marks_tell_their_error_and_spans_of_other_threads_are_cut_to_nest() -> None:
    failure = Failure("ValueError", "no\x1b[31m", samples.LOOP.frames)
    marks = (
        Mark(MarkKind.FETCH, START, START + 10 * MS, "Examples", 1),
        Mark(MarkKind.FORWARD, START + 5 * MS, START + 15 * MS),
        Mark(MarkKind.BACKWARD, START + 20 * MS),
        Mark(MarkKind.EXCEPTION, START + 21 * MS, failure=failure, site=samples.LOOP),
    )
    base = samples.healthy().evidence
    events = events_of(replace(base, traces=(replace(base.traces[0], marks=marks),)))

    assert [event["args"] for event in events if event["name"] == "exception"] == [
        {"error": r"ValueError: no\x1b[31m", "at": "/data/ada/project/train.py:42 in train_epoch"}
    ]


def test_of_a_long_job_the_newest_operations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_OPERATIONS", 8)

    content = json.loads(render_timeline(training(ranks=2)))

    assert content["otherData"]["operations_left_out"] == 40
    kept = {event["name"] for event in content["traceEvents"] if event["name"].startswith("all_reduce")}
    assert kept == {f"all_reduce {number}" for number in (21, 22, 23, 24)}


def test_the_timeline_is_the_kept_one() -> None:
    events = json.loads(render_timeline(training(ranks=2, count=1, late_ns=2 * MS)))
    text = json.dumps(events, indent=1) + "\n"

    path = Path(__file__).with_name("gold") / "ddp_training.trace.json"
    if os.environ.get("DESYNC_REWRITE_GOLD"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
