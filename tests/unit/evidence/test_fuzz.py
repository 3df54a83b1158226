"""Damaged and hostile input; `tools/fuzz_readers.py` does the same for as long as one likes, and counts."""

from __future__ import annotations

import contextlib
import io
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from desync.diagnosis.claims import interpret
from desync.evidence import ncclras, pyspy_dump
from desync.evidence.flight_recorder.columns import from_dump
from desync.evidence.flight_recorder.merge import merge
from desync.evidence.flight_recorder.restricted import RefusedError, loads
from desync.evidence.logs.assemble import assemble
from desync.evidence.logs.reader import LogReader
from desync.evidence.sources import recognise
from desync.model import Evidence, Job
from desync.report.build import build_report
from desync.report.json_format import to_json
from desync.report.model import Timing

from . import dumps as made
from .log_samples import Stuck, timeout_lines
from .log_samples import log as log_of

QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=20), st.binary(max_size=9)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
FIELDS = sorted(made.entry("all_reduce", 1))
LOG = log_of([(rank, list(timeout_lines("2.6", Stuck(rank, 100)))) for rank in (0, 1, 3)], world=4)


def shown(evidence: Evidence) -> None:
    to_json(build_report(evidence, interpret(evidence), Timing()))


@QUIET
@given(
    st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5), max_size=6),
    st.dictionaries(st.sampled_from(["version", "pg_config", "pg_status", "entries"]), VALUES, max_size=2),
)
def test_no_value_in_a_dump_breaks_its_reader(changes: list[dict[str, Any]], outside: dict[str, Any]) -> None:
    entries = [{**made.entry("all_reduce", seq + 1, record=seq), **change} for seq, change in enumerate(changes)]
    try:
        raw = from_dump({**made.dump(entries), **outside})
    except RefusedError:
        return
    merged = merge({0: raw, 1: from_dump(made.dump(made.steps(3)))})
    shown(Evidence(job=Job(world_size=merged.world_size), traces=merged.traces))


@QUIET
@given(st.data())
def test_no_damage_to_a_pickle_gives_anything_but_a_refusal(data: st.DataObject) -> None:
    content = bytearray(pickle.dumps(made.dump(made.steps(3)), protocol=2))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        # Memo numbers and lengths (r, \x8e, \x96 …) can ask for gigabytes; what stops them is the worker's limit, not this.
        byte = data.draw(st.sampled_from(list(set(range(256)) - set(b"rjBXTJ\x8a\x8b\x8d\x8e\x96\x95"))))
        content[place] = byte
    with contextlib.suppress(RefusedError, MemoryError):
        from_dump(loads(bytes(content)))


@QUIET
@given(st.lists(st.tuples(st.integers(0, len(LOG)), st.integers(0, 60), st.text(max_size=12)), max_size=5))
def test_no_damage_to_a_log_breaks_its_reader(changes: list[tuple[int, int, str]]) -> None:
    text = LOG
    for place, removed, inserted in changes:
        text = text[:place] + inserted + text[place + removed :]
    reader = LogReader()
    reader.read(io.BytesIO(text.encode("utf-8", "surrogatepass")), year=2025)
    for facts in reader.runs:
        found = assemble(facts)
        shown(Evidence(job=Job(world_size=found.world_size), traces=found.traces, claims=found.claims))


@QUIET
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_no_bytes_break_the_small_readers(content: bytes) -> None:
    recognise(content)
    pyspy_dump.parse(content.decode("utf-8", "replace"))
    with pytest.raises(ValueError, match="no complete answer"):
        ncclras.parse(content.decode("utf-8", "replace"))
