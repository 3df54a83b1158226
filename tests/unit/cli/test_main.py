from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import desync
from desync.cli import main as cli
from desync.errors import RunDirectoryError


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["wach"], ["there is no command 'wach'", "did you mean 'watch'?"]),
        (["zzz\x1b[31m"], ["there is no command", "commands are watch, report"]),
        (["--bogus"], ["unrecognized arguments: --bogus", "see 'desync --help'"]),
        (["scenarios"], ["required: ACTION", "see 'desync scenarios --help'"]),
        (["doctor", "--run-dir"], ["expected one argument"]),
    ],
)
def test_wrong_use_is_one_line_and_status_2(argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("desync: error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.strip().isprintable()
    for word in words:
        assert word in captured.err


def test_without_arguments_it_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert re.search(rf"^ +{name}( +\w|$)", shown, re.MULTILINE)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"desync {desync.__version__}\n"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Put a function in the place of what ``desync doctor`` does."""

    def install(action: Callable[[], int]) -> None:
        fake = SimpleNamespace(NAME="doctor", HELP="a fake", add_arguments=lambda parser: None, run=lambda arguments: action())
        monkeypatch.setattr(cli, "_load", lambda name: fake)

    return install


def _raiser(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


@pytest.mark.parametrize(
    ("action", "status", "message"),
    [
        (lambda: 7, 7, ""),
        (_raiser(RunDirectoryError("no run at a\x1b[2Jb", "name one")), 2, "desync: error: no run at a\\x1b[2Jb; name one\n"),
        (_raiser(KeyboardInterrupt()), 130, ""),
    ],
)
def test_what_a_command_does_becomes_the_exit_status(
    action: Callable[[], int],
    status: int,
    message: str,
    command: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(action)
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("debug", [False, True])
def test_a_defect_asks_for_a_report_and_shows_a_traceback_only_on_demand(
    debug: bool,
    command: Callable[[Callable[[], int]], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DESYNC_DEBUG", "1" if debug else "0")
    command(_raiser(ValueError("two\nlines")))
    assert cli.main(["doctor"]) == cli.EXIT_INTERNAL == 70
    shown = capsys.readouterr().err
    assert "desync: internal error: ValueError: two lines; this is a defect of desync: please report it" in shown
    assert ("Traceback" in shown) is debug
    assert debug or shown.count("\n") == 1


@pytest.mark.parametrize("action", ["print('text', flush=True)", "print('text')"])
def test_a_closed_pipe_ends_it_quietly(action: str) -> None:
    program = f"""
import sys, types
from desync.cli import main as cli
fake = types.SimpleNamespace(NAME="doctor", HELP="", add_arguments=lambda parser: None, run=lambda arguments: {action} or 0)
cli._load = lambda name: fake
sys.exit(cli.main(["doctor"]))
"""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([sys.executable, "-c", program], stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_streams_change_neither_the_jobs_output_nor_its_status(closed: tuple[int, ...], tmp_path: Path) -> None:
    # Each line in one write: where Python does not hold output back a print is two, and the other stream can come between.
    say = "write = lambda number, text: os.write(number, f'{text}\\n'.encode())"
    job = f"import os, sys; {say}; write(1, 'out'); write(2, 'err'); write(1, os.fstat(0)); sys.exit(5)"
    shell = "exec " + " ".join(f"{number}>&-" for number in closed) + '; exec "$@"'
    watch = [sys.executable, "-m", "desync", "watch", "--run-dir", str(tmp_path / "run"), "--", sys.executable, "-c", job]
    done = subprocess.run(
        ["bash", "-c", shell, "bash", *watch], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 5, done.stderr
    log = (tmp_path / "run" / "output.log").read_text().splitlines()
    assert {"out", "err"} < set(log)
    assert any(line.startswith("os.stat_result") for line in log)
    assert ("out" in done.stdout.splitlines()) is (1 not in closed)
    assert ("err" in done.stderr.splitlines()) is (2 not in closed)


def test_mark_reaches_a_started_recorder_and_is_silent_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "desync.recorder.marks", raising=False)
    desync.mark("stop", value=1)  # nobody records: nothing happens
    assert "desync.recorder.marks" not in sys.modules

    seen: list[tuple[object, ...]] = []

    def user_mark(*given: object) -> None:
        seen.append(given)
        raise OSError("disk full")

    recorder = ModuleType("desync.recorder.marks")
    recorder.user_mark = user_mark  # type: ignore[attr-defined] # a stand-in for the real module
    monkeypatch.setitem(sys.modules, "desync.recorder.marks", recorder)
    desync.mark("stop", value=1)
    desync.mark("epoch")
    assert seen == [("stop", 1), ("epoch", None)]
