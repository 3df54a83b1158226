"""What all tests share: no process outlives its test, and a command that hangs shows its stacks before it is ended."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from desync.errors import ReportError
from desync.report.json_format import from_json

ROOT = Path(__file__).resolve().parents[1]
MARKER = "DESYNC_TEST"
GRACE_S = 5.0
"""How long a process that is about to end may take for it."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, for a failing test's message."""
        return f"exit status {self.status}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


RunCommand = Callable[..., Finished]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file share its jobs, and stay together where several run side by side; the pages of docs/ share none."""
    for item in items:
        if item.path.name != "test_docs.py":
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


@pytest.fixture(scope="session", autouse=True)
def test_marker() -> Iterator[str]:
    """Mark the environment of everything that this test run starts, so that it is found even when it has left the tree."""
    identity = uuid.uuid4().hex
    os.environ[MARKER] = identity
    yield identity
    del os.environ[MARKER]


@pytest.fixture(autouse=True)
def no_process_left(test_marker: str) -> Iterator[None]:
    """Fail a test that leaves a process behind (and end the process)."""
    before = {process.pid for process in _started_here(test_marker)}
    yield
    left = [process for process in _started_here(test_marker) if process.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=GRACE_S)
    names = [_describe(process) for process in alive]
    for process in alive:
        _kill(process)
    psutil.wait_procs(alive, timeout=GRACE_S)
    assert not names, f"processes were left running: {names}"


@pytest.fixture(autouse=True)
def reports_follow_the_schema(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check every report.json that a test leaves in its folder, whatever wrote it, against the published schema."""
    folder = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for path in sorted(folder.rglob("report.json")) if folder else ():
        if path.is_file() and (content := _report_in(path)) is not None:
            wrong = [f"{error.json_path}: {error.message[:200]}" for error in _schema().iter_errors(content)]
            assert wrong == [], path


def _report_in(path: Path) -> Any:
    """The content of a file that desync itself would read as a report; None for one that a test has damaged."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        from_json(text)
    except ReportError:
        return None
    return json.loads(text)


@functools.cache
def _schema() -> Any:
    published = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(published, format_checker=jsonschema.FormatChecker())


@pytest.fixture
def run_command() -> RunCommand:
    """A function that runs a command to its end; see :func:`run_to_end`."""
    return run_to_end


def run_to_end(
    command: Sequence[str | Path],
    *,
    timeout_s: float = 240,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run a command; ``env`` changes the environment (None removes a variable).

    One that is late fails the test with the stacks of its whole tree, which is then ended.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})}
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in environment.items() if value is not None},
        cwd=cwd or ROOT,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        stacks = end_tree(process.pid)
        stdout, stderr = process.communicate()
        finished = Finished(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
        pytest.fail(f"not over after {timeout_s} s: {command}\n{finished.output}\n--- stacks\n{stacks}")
    return Finished(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


def end_tree(pid: int) -> str:
    """End a process and all its descendants; returns the stacks that they had."""
    root = psutil.Process(pid)
    tree = [root, *root.children(recursive=True)]
    stacks = "\n".join(_stack(process) for process in tree)
    for process in tree:
        _kill(process)
    return stacks


def _started_here(marker: str) -> list[psutil.Process]:
    own = os.getpid()
    children = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid != own and process.pid not in children and _marked(process, marker):
            children[process.pid] = process
    return [process for process in children.values() if process.is_running()]


def _marked(process: psutil.Process, marker: str) -> bool:
    try:
        return process.environ().get(MARKER) == marker
    except (psutil.Error, OSError):
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _stack(process: psutil.Process) -> str:
    py_spy = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    try:
        taken = subprocess.run(
            [py_spy, "dump", "--pid", str(process.pid)], capture_output=True, text=True, timeout=10, check=False
        )
        return taken.stdout or f"{_describe(process)}: {taken.stderr.strip()}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{_describe(process)}: {error}"
