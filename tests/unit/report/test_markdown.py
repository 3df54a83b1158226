from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from desync.report.json_format import from_json, to_json
from desync.report.markdown import code, escape, render_markdown
from desync.report.model import ExceptionEntry
from desync.report.redact import Redaction, redacted
from tests.unit.report import report_samples as samples
from tests.unit.report.report_samples import PROJECT

GOLD = Path(__file__).with_name("gold")


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_the_rendering_is_the_kept_one_and_short(name: str) -> None:
    report = samples.SAMPLES[name]().report()

    text = render_markdown(from_json(to_json(report)), base=PROJECT)

    path = GOLD / f"{name}.md"
    if os.environ.get("DESYNC_REWRITE_GOLD"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60


def test_a_long_report_keeps_what_matters_most() -> None:
    report = samples.exception().report()
    many = replace(report.findings[0], evidence=tuple(f"line {number}" for number in range(40)))
    report = replace(
        report,
        findings=(many, *[replace(report.findings[1], summary=f"fault {number}") for number in range(30)]),
        stacks=samples.many_ranks().report().stacks,
        notes=tuple(f"note {number}" for number in range(100)),
    )

    text = render_markdown(report, base=PROJECT)

    assert len(text.splitlines()) < 60
    assert "**CRASH**" in text
    assert "… 35 more" in text
    assert "3 ranks" in text.splitlines()[-1]


def test_another_fault_is_named_under_the_verdict() -> None:
    text = render_markdown(samples.two_faults().report(), base=PROJECT)
    assert "- another fault: hang: `uneven_inputs`, rank 2 at train.py:" in text


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Authorization: Bearer SECRET3 sent", "Authorization: *** sent"),
        ("{'Authorization': 'Bearer tok', 'password': 'x y'}", "{'Authorization': ***, 'password': ***}"),
        ('{"api_key": "x1y2"}', '{"api_key": ***}'),
        ("pwd=hunter2 PGPASSWORD=hunter2", "pwd=*** PGPASSWORD=***"),
        ("https://h/x?sig=abc%3D&v=1 X-Amz-Signature=dead", "https://h/x?sig=***&v=1 X-Amz-Signature=***"),
        ("got eyJhbGciOiJIUzI1.eyJzdWIiOiIx.sgn_x", "got ***"),
        ("to [fe80::1ff:fe23:4567:890a]:29500 from ::1", "to [<address>]:29500 from ::1"),
        ("/mnt/home/ada/x.py", "~/x.py"),
        ("at 12:34:56, std::vector, train.py:42:7", "at 12:34:56, std::vector, train.py:42:7"),
    ],
)
def test_what_is_private_is_left_out_of_a_sentence(said: str, shown: str) -> None:
    assert Redaction(samples.killed().report()).text(said) == shown


def private_report() -> samples.Report:
    base = samples.killed().report()
    said = (
        "no HF_TOKEN=hf_abcdefghijklmnop at /home/ada/run/x.py, see https://ada:pw1@gpu-1.example.com/ from 10.0.0.7 "
        "and 127.0.0.1; password: hunter2 on gpu-2"
    )
    ranks = (replace(base.ranks[0], exception=ExceptionEntry("ValueError", said)), *base.ranks[1:])
    command = ("torchrun", "--api-key", "sk-0123456789abcdef", "WANDB_API_KEY=deadbeef", "/home/ada/t.py")
    return replace(base, ranks=ranks, job=replace(base.job, command=command), notes=(said,))


def test_strangers_see_no_homes_no_hosts_no_secrets() -> None:
    report = private_report()

    text, everything = render_markdown(report, base=PROJECT), render_markdown(report, full=True, base=PROJECT)
    kept = to_json(redacted(report))

    for secret in ("ada", "hf_abc", "pw1", "10.0.0.7", "hunter2", "gpu-1", "gpu-2"):
        assert secret not in text.replace(PROJECT, "")
        assert secret in everything
    for secret in ("sk-0123", "deadbeef", "hf_abc", "pw1", "10.0.0.7", "hunter2", "gpu-1", "/home/ada"):
        assert secret not in kept
    assert "127.0.0.1" in text
    assert "node-1" in text


def test_what_is_not_private_stays() -> None:
    report = samples.uneven_inputs().report()

    assert redacted(report).verdict == report.verdict
    assert redacted(report).divergence == report.divergence


def test_foreign_text_is_no_markup() -> None:
    assert escape("*a* _b_ all_reduce <img src=x> @you #1 [x](http://e) `c` | ~d~ $e$") == (
        r"\*a\* \_b\_ all_reduce \<img src=x\> \@you \#1 \[x\](http\://e) \`c\` \| \~d\~ \$e\$"
    )
    assert escape("- list\n# title") == r"\- list \# title"
    assert escape("1. one") == r"\1. one"
    assert code("a``b`") == "``` a``b` ```"
    assert code("a|b\nc") == "`a|b c`"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(exclude_categories=[]), max_size=60))
def test_whatever_a_job_calls_things_the_page_keeps_its_lines(name: str) -> None:
    with mock.patch.object(samples, "HOSTILE", name):
        report = samples.hostile().report()
    with mock.patch.object(samples, "HOSTILE", "name"):
        plain = render_markdown(samples.hostile().report(), base=PROJECT, full=True)

    lines = render_markdown(report, base=PROJECT, full=True).split("\n")

    assert all(line.isprintable() for line in lines)
    assert len(lines) < 61
    assert lines.count("```text") == lines.count("```") == plain.split("\n").count("```")
