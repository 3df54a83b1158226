from __future__ import annotations

import dataclasses
import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

import desync.report.model
from desync import __version__
from desync.errors import ReportError, RunDirectoryError
from desync.report.json_format import from_json, to_json, write_report
from desync.report.terminal import render
from tests.unit.report import report_samples as samples

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "report.schema.json").read_text(encoding="utf-8"))
ALL = pytest.mark.parametrize("sample", samples.SAMPLES.values(), ids=samples.SAMPLES.keys())


@ALL
def test_a_report_survives_the_way_through_json(sample: Callable[[], samples.Sample]) -> None:
    report = sample().report()

    text = to_json(report)

    assert text.isascii()
    assert from_json(text) == report


def test_the_report_is_the_kept_one() -> None:
    text = to_json(samples.uneven_inputs().report()).replace(f'"desync": "{__version__}"', '"desync": "0"')

    path = Path(__file__).with_name("gold") / "uneven_inputs.json"
    if os.environ.get("DESYNC_REWRITE_GOLD"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@ALL
def test_reports_are_what_the_published_schema_says(sample: Callable[[], samples.Sample]) -> None:
    content = json.loads(to_json(sample().report()))

    jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(content)


def test_the_published_schema_knows_every_field_and_which_ones_may_be_missing() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for name, definition in {**SCHEMA["$defs"], "Report": SCHEMA}.items():
        fields = dataclasses.fields(getattr(desync.report.model, name, None) or desync.model.Frame)
        assert set(definition["properties"]) == {field.name for field in fields}, name
        required = {field.name for field in fields if field.default is dataclasses.MISSING}
        assert set(definition["required"]) == required | ({"schema"} if name == "Report" else set()), name


def test_the_published_schema_refuses_what_is_no_report() -> None:
    content = json.loads(to_json(samples.uneven_inputs().report()))
    content["verdict"]["status"] = "fine"

    with pytest.raises(jsonschema.ValidationError, match="fine"):
        jsonschema.validate(content, SCHEMA)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"schema": "desync.report/1", "notes": NaN}', "no JSON"),
        ("[]", "no desync report"),
        ('{"schema": 7}', "no desync report"),
        ('{"schema": "desync.report/2"}', "schema 'desync.report/2', this desync reads desync.report/1"),
        ('{"schema": "desync.report/1"}', "report.job is missing"),
        ('{"schema": "desync.report/1", "job": []}', "report.job is no object"),
    ],
)
def test_what_is_no_report_is_refused_with_a_reason_and_a_remedy(text: str, said: str) -> None:
    with pytest.raises(ReportError, match=said) as caught:
        from_json(text)
    assert caught.value.remedy


def test_fields_added_by_other_versions_neither_harm_nor_are_needed() -> None:
    content = json.loads(to_json(samples.uneven_inputs().report()))
    content["job"]["cluster"] = "new"
    del content["window"], content["verdict"]["places"]

    report = from_json(json.dumps(content))

    assert report.window is None
    assert report.verdict.places == ()
    assert report.divergence == samples.uneven_inputs().report().divergence


def _paths(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(entries):
        yield value, key
        yield from _paths(item)


def test_a_damaged_report_is_refused_or_rendered_but_never_a_traceback() -> None:
    content = json.loads(to_json(samples.rank_only_branch().report()))
    refused = 0
    for container, key in list(_paths(content)):
        kept = container[key]
        for wrong in (None, -7, "x", [], {}):
            container[key] = wrong
            try:
                report = from_json(json.dumps(content))
            except ReportError:
                refused += 1
            else:
                render(report, Console(file=io.StringIO(), width=80))
        container[key] = kept
    assert refused > 500


def test_infinite_numbers_are_refused() -> None:
    text = to_json(samples.uneven_inputs().report()).replace('"detected_after_s": 1.2', '"detected_after_s": 1e999')

    with pytest.raises(ReportError, match=r"timing\.detected_after_s"):
        from_json(text)


def test_the_written_file_is_private_and_replaces_the_former_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(samples.healthy().report(), path)
    write_report(samples.uneven_inputs().report(), path)

    assert from_json(path.read_text()) == samples.uneven_inputs().report()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()

    with pytest.raises(RunDirectoryError, match="cannot write"):
        write_report(samples.healthy().report(), tmp_path / "report.json")
    with pytest.raises(RunDirectoryError, match="No such file"):
        write_report(samples.healthy().report(), tmp_path / "gone" / "report.json")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
