from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from desync import __version__
from desync.model import AtDivergence, Evidence, Frame, OperationState, RankState, Tensors
from desync.report.build import build_report
from desync.report.html import render_html
from desync.report.json_format import from_json, to_json
from desync.report.model import MergedStack, Report, Timing
from tests.unit.report import ddp_samples
from tests.unit.report import report_samples as samples
from tests.unit.report.report_samples import GRADIENTS, MS, PROJECT, START, Sample, Step, diagnosis, job, steps, trace

GOLD = Path(__file__).with_name("gold")
KEPT: dict[str, Callable[[], Sample]] = {
    **{name: samples.SAMPLES[name] for name in ("uneven_inputs", "circle_of_groups", "exception", "hostile")},
    "ddp_training": ddp_samples.ddp_training,
}
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """What a page consists of; fails where tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(report: Report) -> Page:
    return Page(render_html(report, PROJECT))


def check_harmless(page: Page) -> None:
    """No script, nothing that loads or leads anywhere, no style but the page's own."""
    for tag, attributes in page.tags:
        assert tag not in {"script", "iframe", "object", "embed", "link", "form", "base", "img", "a"} or attributes == {
            "class": "skip",
            "href": "#main",
        }
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"style", "src", "srcset", "action", "formaction", "ping"}
            assert name == "href" or "javascript:" not in (value or "") or name in {"title", "content", "aria-label"}


@pytest.mark.parametrize("name", KEPT)
def test_the_page_is_the_kept_one_also_from_report_json_alone(name: str) -> None:
    report = KEPT[name]().report()

    text = render_html(from_json(to_json(report)), PROJECT)

    assert text == render_html(report, PROJECT)
    scrubbed = re.sub(r"<style>.*?</style>", "<style></style>", text, flags=re.DOTALL)
    scrubbed = re.sub(r"sha256-[^']*", "sha256-", scrubbed).replace(f"<dd>{__version__}</dd>", "<dd>0</dd>")
    path = GOLD / f"{name}.html"
    if os.environ.get("DESYNC_REWRITE_GOLD"):
        path.write_text(scrubbed, encoding="utf-8")
    assert scrubbed == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_every_page_is_well_formed_harmless_and_accessible(name: str) -> None:
    page = page_of(samples.SAMPLES[name]().report())

    check_harmless(page)
    ids = Counter(attributes["id"] for _, attributes in page.tags if "id" in attributes)
    assert max(ids.values()) == 1
    for tag, attributes in page.tags:
        for link in ("popovertarget", "aria-labelledby"):
            assert link not in attributes or attributes[link] in ids
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
        if tag == "th":
            assert attributes.get("scope") in {"row", "col"}
    headings = [tag for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert headings.count("h1") == 1
    assert headings[0] == "h1"
    assert {"html", "main", "title"} <= {tag for tag, _ in page.tags}


def test_the_policy_allows_the_own_style_sheet_and_nothing_else() -> None:
    page = page_of(samples.healthy().report())

    (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[\w+/=]{44}'; base-uri 'none'; form-action 'none'", policy or ""
    )


ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'/onmouseover=alert(1)//",
    "{{ 7*7 }}{% for x in y %}",
    "</style><svg onload=alert(1)>",
    "javascript:alert(1)",
    "<!-- ",
    "]]>",
    "&lt;b&gt; &#x3c;",
    "\u202e\u2066\x00\x1b[31m\ud800\ufeff",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_job_calls_things_is_shown_and_never_markup(attack: str) -> None:
    with mock.patch.object(samples, "HOSTILE", attack):
        attacked = page_of(samples.hostile().report())
    with mock.patch.object(samples, "HOSTILE", "x"):
        plain = page_of(samples.hostile().report())

    check_harmless(attacked)
    assert [tag for tag, _ in attacked.tags] == [tag for tag, _ in plain.tags]
    if attack.isprintable():
        assert attack.strip() in attacked.text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(exclude_categories=[]), max_size=60))
def test_whatever_a_job_calls_things_the_structure_stays(name: str) -> None:
    with mock.patch.object(samples, "HOSTILE", name):
        page = page_of(samples.hostile().report())

    check_harmless(page)
    assert all(word.replace("\n", " ").isprintable() for word in page.words)


def crowd(size: int) -> Sample:
    """Every rank stands somewhere else, with shapes and names of its own."""
    group = samples.Group("default_pg", tuple(range(size)))
    made = []
    for rank in range(size):
        call = replace(GRADIENTS, op=f"op_{rank}", inputs=Tensors(((rank + 1, 77),), ("float32",)))
        inside = [*steps(call, 12), Step(call, 13, done=None)]
        made.append(trace(rank, inside, node=f"node-{rank // 8}", groups={"default_pg": group}))
    standing = {rank: AtDivergence(OperationState.MISMATCHED, made[rank].operations.row(rank, 12)) for rank in range(size)}
    base = samples.shape_mismatch().diagnosis.findings[0]
    finding = replace(base, culprit_ranks=(size - 1,), divergence=samples.Divergence(group, "collective", 13, "op_0", standing))
    stacks = tuple(
        samples.RankStacks(rank, "py-spy", START, (samples.Stack("MainThread", (samples.frame("f", "train.py", rank + 1),)),))
        for rank in range(size)
    )
    evidence = Evidence(job(size), tuple(made), stacks=stacks)
    return Sample(evidence, diagnosis([finding], dict.fromkeys(range(size), RankState.WAITING)))


@pytest.mark.parametrize("size", [64, 512])
def test_many_ranks_that_all_differ_make_a_page_of_bounded_size(size: int) -> None:
    report = crowd(size).report()

    text = render_html(report, PROJECT)
    page = Page(text)

    assert len(text.encode()) < 2_000_000
    assert text.count('class="block f-') < 1000
    assert "more rows in report.json" in page.text
    assert "more, at" in page.text
    assert f"► {size - 1}" in page.text  # the culprit is never among what is left out
    assert page.text.count("node-") >= size


def test_a_foreign_report_with_endless_stacks_is_rendered_all_the_same() -> None:
    frames = tuple(Frame("f", "/data/x.py", line) for line in range(1, 3000))
    stacks = tuple(MergedStack((rank,), "py-spy", "MainThread", frames[-10 * rank - 1 :]) for rank in range(250))

    text = render_html(replace(samples.uneven_inputs().report(), stacks=stacks), PROJECT)

    assert "x.py:2999" in text
    assert len(text) < 2_000_000


def test_the_page_says_who_which_line_and_what_to_change_first() -> None:
    text = page_of(samples.uneven_inputs().report()).text

    words = ["hangs, probably because of rank 2", "train.py:84", "all_reduce 17", "train.py:42", "Give every", "Where they"]
    places = [text.index(word) for word in words]
    assert places == sorted(places)


def test_rows_of_the_step_and_advice_are_on_the_page() -> None:
    text = page_of(ddp_samples.ddp_training().report()).text

    for word in ("How DDP synchronises", "32 % of the communication hides", "gradient_as_bucket_view=True", "10.9 ms"):
        assert word in text


def test_a_late_rank_has_the_longest_bar() -> None:
    late = build_report(ddp_samples.training(ranks=3, late_ns=6 * MS), diagnosis([], {}), Timing())
    bars = [int(a["width"] or 0) for tag, a in page_of(late).tags if tag == "rect" and a.get("class") == "bar"]

    assert bars == [200, 1, 1]
