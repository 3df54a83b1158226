"""What a person must be able to see and do on the page, in a real browser."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from desync.report.html import render_html
from desync.report.model import Report
from tests.browser.conftest import resize
from tests.unit.report import ddp_samples
from tests.unit.report import report_samples as samples
from tests.unit.report.report_samples import PROJECT
from tests.unit.report.test_html import ATTACKS, crowd

Show = Callable[..., Any]
SHOTS = os.environ.get("DESYNC_SCREENSHOTS")
"""A folder in which pictures of the pages are kept."""
LEAK = """
return [...document.querySelectorAll('body *')]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll') && !e.closest('[popover]'))
  .map(e => e.tagName + '.' + e.className);
"""
CONTRAST = """
const lum = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
  return .2126 * r + .7152 * g + .0722 * b; };
const rgba = s => { const m = s.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
const back = e => {
  for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > .99) return c; }
  return rgba(getComputedStyle(document.documentElement).backgroundColor)[3] ? [0, 0, 0] : [255, 255, 255]; };
const bad = [];
for (const e of document.querySelectorAll('main *')) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || e.closest('svg') || e.closest('[popover]') || !e.getClientRects().length) continue;
  const style = getComputedStyle(e);
  const [a, b] = [lum(rgba(style.color).slice(0, 3)), lum(back(e).slice(0, 3))].sort((x, y) => y - x);
  if ((a + .05) / (b + .05) < 4.5) bad.push(e.tagName + '.' + e.className + ': ' + e.textContent.trim().slice(0, 30));
}
return bad;
"""


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Show:
    """Opens a report's page from disk; the browser's console must stay empty."""

    def open_page(report: Report, name: str = "report") -> Any:
        page = tmp_path / f"{name}.html"
        page.write_text(render_html(report, PROJECT), encoding="utf-8")
        browser.get(page.as_uri())
        complaints = [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]]
        assert complaints == []
        if SHOTS:
            browser.save_screenshot(str(Path(SHOTS) / f"{name}.png"))
        return browser

    return open_page


def visible_at_once(driver: Any) -> str:
    """The text that is inside the window without scrolling."""
    found: str = driver.execute_script(
        """
        const seen = [];
        const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) {
          const range = document.createRange(); range.selectNode(walk.currentNode);
          const box = range.getBoundingClientRect();
          if (box.width && box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth)
            seen.push(walk.currentNode.textContent.trim());
        }
        return seen.filter(Boolean).join(' ').replace(/\\s+/g, ' ');
        """
    )
    return found


FIRST_SCREEN = {
    "uneven_inputs": ["rank 2", "all_reduce 17", "train.py:84 in main", "train.py:42", "Give every rank", "never came"],
    "many_ranks": ["rank 3", "all_reduce 17", "train.py:84", "0-2,4-63", "Give every rank", "never came"],
    "shape_mismatch": ["rank 3", "all_reduce 3", "[10]", "≠ all_reduce", "differs"],
    "rank_only_branch": ["rank 0", "barrier 17", "checkpoint.py:18 in save", "Call it on all ranks", "≠ barrier"],
    "exception": ["rank 1", "all_reduce 17", "data.py:31 in collate", "Fix the exception", "never came"],
    "killed": ["rank 2", "gpu-2", "SIGKILL", "all_reduce 17"],
    "deadlock_of_sends": ["ranks 0-1", "send 2", "train.py:42", "Let one of them receive first", "send →1"],
    "circle_of_groups": ["all_reduce 1 of group 1", "all_reduce 1 of group 2", "train.py:42", "waiting, group 2", "one order"],
    "healthy": ["healthy", "Nothing is wrong", "All 4 ranks"],
}


def test_the_first_screen_answers_which_rank_which_collective_which_line_and_what_to_do(show: Show) -> None:
    for name, words in FIRST_SCREEN.items():
        driver = show(samples.SAMPLES[name]().report(), name)
        text = visible_at_once(driver)
        assert [word for word in words if word not in text] == [], (name, text)
        assert driver.execute_script(LEAK) == [], name


def test_a_click_shows_arguments_and_call_site_and_the_keyboard_does_too(show: Show) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver = show(samples.uneven_inputs().report())
    blocks = driver.find_elements(By.CSS_SELECTOR, ".lanes .at button")
    detail = driver.find_element(By.ID, blocks[0].get_attribute("popovertarget"))

    assert not detail.is_displayed()
    blocks[0].click()
    assert detail.is_displayed()
    for word in ("all_reduce 17", "float32 [20]", "reduce op\nsum", "fc.weight, fc.bias", "train.py:42 in train_epoch"):
        assert word in detail.text
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    assert not detail.is_displayed()
    blocks[0].send_keys(Keys.ENTER)
    assert detail.is_displayed()


def test_the_keyboard_reaches_everything_and_shows_where_it_is(show: Show) -> None:
    from selenium.webdriver.common.keys import Keys

    driver = show(samples.rank_only_branch().report())
    reached = []
    for _ in range(200):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        active = driver.switch_to.active_element
        if active.tag_name in ("body", "html"):
            break
        reached.append((active.tag_name, active.get_attribute("class"), active.value_of_css_property("outline-style")))
    everything = "[...document.querySelectorAll('a, button, summary, [tabindex]')].filter(e => e.checkVisibility())"

    assert len(reached) == driver.execute_script(f"return {everything}.length")
    assert {tag for tag, _, _ in reached} >= {"a", "div", "button", "summary"}
    assert all(outline == "solid" for _, _, outline in reached)


def test_a_screen_reader_is_told_the_same(show: Show) -> None:
    driver = show(samples.uneven_inputs().report())

    tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    told = [node for node in tree if not node.get("ignored")]
    said = [(node.get("role", {}).get("value"), node.get("name", {}).get("value", "")) for node in told]

    assert ("heading", "The job hangs, probably because of rank 2") in said
    names = {name for _, name in said}
    assert any("0-1,3" in name for role, name in said if role == "rowheader")
    assert any(role == "button" and "all_reduce waiting" in name for role, name in said)
    assert {"region", "table", "main", "definition"} <= {role for role, _ in said}
    assert "culprit" in names


def test_everything_can_be_read_in_light_and_dark(show: Show, browser: Any) -> None:
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for made in (samples.exception(), samples.shape_mismatch(), ddp_samples.ddp_training()):
            driver = show(made.report(), scheme)
            assert driver.execute_script(CONTRAST) == []
            page = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (page == "rgb(255, 255, 255)") == (scheme == "light")


def test_on_a_narrow_screen_nothing_sticks_out(show: Show) -> None:
    driver = show(samples.exception().report())

    resize(driver, 390, 844)

    assert driver.execute_script(LEAK) == []


def test_on_paper_the_page_is_whole(show: Show) -> None:
    driver = show(samples.uneven_inputs().report())

    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    pdf = base64.b64decode(driver.print_page())
    resize(driver, 793, 1122)

    assert pdf.startswith(b"%PDF")
    assert 1 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") <= 4
    cells = "[...document.querySelectorAll('.lanes th, .lanes td')].filter(e => e.checkVisibility())"
    assert driver.execute_script(
        f"return {cells}.every(e => e.getBoundingClientRect().left >= 0 && e.getBoundingClientRect().right <= innerWidth + 1)"
    )
    covered = driver.execute_script(
        f"const boxes = {cells}.map(e => e.getBoundingClientRect());"
        "return boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right - 1 && b.left < a.right - 1"
        " && a.top < b.bottom - 1 && b.top < a.bottom - 1)).length"
    )
    assert covered == 0
    badge = "const style = getComputedStyle(document.querySelector('.badge')); return style.printColorAdjust"
    assert driver.execute_script(badge) == "exact"


def test_among_512_ranks_the_culprit_is_seen_and_the_page_stays_usable(show: Show) -> None:
    driver = show(crowd(512).report())

    assert "rank 511" in visible_at_once(driver)
    assert driver.execute_script("return document.querySelectorAll('.lanes tbody tr').length") == 40
    culprit = driver.execute_script("return document.querySelector('.lanes tr.culprit th').textContent")
    assert culprit.split()[:2] == ["►", "511"]
    assert driver.execute_script(LEAK) == []


def test_nothing_of_the_job_runs_or_becomes_markup(show: Show) -> None:
    from selenium.common.exceptions import NoAlertPresentException

    foreign = "return document.querySelectorAll('script, img, iframe, a:not(.skip), [onmouseover], [onload]').length"
    for attack in ATTACKS:
        with mock.patch.object(samples, "HOSTILE", attack):
            driver = show(samples.hostile().report())
        assert driver.execute_script(foreign) == 0, attack
        with pytest.raises(NoAlertPresentException):
            _ = driver.switch_to.alert.text


def test_markup_that_slipped_past_the_escaping_would_still_not_run(show: Show) -> None:
    driver = show(samples.healthy().report())

    inserted = "document.body.insertAdjacentHTML('beforeend', '<img src=\"data:,\" onerror=\"window.ran=1\">')"
    assert driver.execute_async_script(f"{inserted}; setTimeout(() => arguments[0](window.ran === undefined), 200)")
    assert "Content Security Policy" in str(driver.get_log("browser"))
