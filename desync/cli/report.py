"""``desync report``: shows the report of a run again."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from desync.errors import DesyncError, ReportError, RunDirectoryError, UsageError

if TYPE_CHECKING:
    from desync.report.model import Report

NAME = "report"
HELP = "show the report of a run again"

LATEST = Path("desync-runs") / "latest"
REPORT = "report.json"
PAGE = "report.html"
MAX_BYTES = 256 * 1024 * 1024
"""A larger file is not read: no job's report comes near it."""
LEFT = f"its watcher has left no {REPORT}, or is still at work: this was made from what was left, the ranks' journals"
FILE_WIDTH = 100
"""Width of a terminal report that is written to a file, in characters."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``desync report``."""
    run_dir = f"the run's directory, or its {REPORT} (default: the newest run)"
    parser.add_argument("run_dir", metavar="RUN_DIR", nargs="?", type=Path, help=run_dir)
    add_output_arguments(parser)
    parser.add_argument("--open", action="store_true", help=f"open {PAGE} of the run in a browser")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how a report is shown: its format, where it goes, and the status that it gives."""
    parser.add_argument("--format", choices=tuple(FORMATS), default="terminal", help="default: terminal")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of standard output")
    parser.add_argument("--force", action="store_true", help="let -o replace an existing file")
    private = "in Markdown, keep home directories, names of machines, addresses and what looks like a secret"
    parser.add_argument("--full", action="store_true", help=private)
    parser.add_argument("--check", action="store_true", help="exit with 1 if there is a finding")


def run(arguments: argparse.Namespace) -> int:
    """Render the report; returns 1 with ``--check`` if it has a finding, else 0."""
    report = load(arguments.run_dir)
    if arguments.open:
        _open(report, arguments.run_dir)
    else:
        deliver(report, arguments)
    return 1 if arguments.check and report.findings else 0


def deliver(report: Report, arguments: argparse.Namespace) -> None:
    """Show the report, or write it where ``--output`` says."""
    if arguments.output is None:
        _show(report, arguments)
    else:
        _write(_text(report, arguments), arguments.output, arguments.force)


def load(run_dir: Path | None) -> Report:
    """The report of a run directory (or of a report.json); None: of the newest run.  Raises a DesyncError if there is none."""
    from desync.report.json_format import from_json

    if (left := _only_journals(run_dir)) is not None:
        return _from_what_is_left(left)
    path = _report_path(run_dir)
    try:
        return from_json(_read(path))
    except ReportError as error:
        raise ReportError(f"{str(path)!r}: {error.message}", error.remedy) from None


def _only_journals(run_dir: Path | None) -> Path | None:
    """The run's directory, if its watcher left journals and no report: it was killed, or is still at work."""
    chosen = LATEST if run_dir is None else run_dir
    left = not (chosen / REPORT).exists() and any((chosen / "journals").glob("*.journal"))
    return chosen if left else None


def _from_what_is_left(run_dir: Path) -> Report:
    """What journals alone say, as ``desync explain`` would say it."""
    from dataclasses import replace

    from desync.cli.explain import explain

    report = explain([str(run_dir)])
    return replace(report, notes=(LEFT, *report.notes))


def _report_path(run_dir: Path | None) -> Path:
    """Where the report must lie, with an error that says what is wrong if it does not."""
    chosen = LATEST if run_dir is None else run_dir
    if chosen.is_file():
        return chosen
    if (chosen / REPORT).is_file():
        return chosen / REPORT
    if run_dir is None and not chosen.is_dir():
        raise RunDirectoryError(
            f"there is no run here ({LATEST} does not exist)", "name a run directory, or make one with `desync watch COMMAND`"
        )
    if not chosen.exists():
        raise RunDirectoryError(f"there is no {str(chosen)!r}", "name a run directory of `desync watch`")
    if (chosen / "journals").is_dir():
        raise RunDirectoryError(f"{str(chosen)!r} has no {REPORT} (yet)", "wait until its `desync watch` has written it")
    raise RunDirectoryError(
        f"{str(chosen)!r} is no run directory (no {REPORT} in it)", "name one that `desync watch` made, as in desync-runs/"
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RunDirectoryError(f"cannot read {str(path)!r}: {error.strerror}", "check its permissions") from None
    if len(content) > MAX_BYTES:
        raise ReportError("the file is too large for a report", "name a run directory of `desync watch`")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ReportError("this is no JSON", "name a run directory of `desync watch`, or a report.json from one") from None


def _show(report: Report, arguments: argparse.Namespace) -> None:
    if arguments.format != "terminal":
        sys.stdout.write(_text(report, arguments))
        return
    from rich.console import Console

    from desync.report.terminal import render

    render(report, Console(soft_wrap=False))


def _text(report: Report, arguments: argparse.Namespace) -> str:
    return FORMATS[arguments.format](report, arguments)


def _terminal(report: Report, _arguments: argparse.Namespace) -> str:
    from rich.console import Console

    from desync.report.terminal import render

    console = Console(file=io.StringIO(), width=FILE_WIDTH, color_system=None, force_terminal=False)
    with console.capture() as captured:
        render(report, console)
    return captured.get()


def _json(report: Report, _arguments: argparse.Namespace) -> str:
    from desync.report.json_format import to_json

    return to_json(report)


def _html(report: Report, _arguments: argparse.Namespace) -> str:
    from desync.report.html import render_html

    return render_html(report)


def _markdown(report: Report, arguments: argparse.Namespace) -> str:
    from desync.report.markdown import render_markdown

    return render_markdown(report, full=arguments.full)


def _ddp(report: Report, _arguments: argparse.Namespace) -> str:
    from desync.report.ddp_text import render_ddp

    return render_ddp(report)


def _timeline(report: Report, arguments: argparse.Namespace) -> str:
    from desync.evidence.run_directory import load as load_evidence
    from desync.report.timeline import render_timeline

    place = _report_path(arguments.run_dir)
    if not (place.parent / "journals").is_dir():
        raise ReportError(f"the timeline needs the journals beside {str(place)!r}", "name the run's directory")
    return render_timeline(load_evidence(place.parent, attempt=report.job.attempt))


FORMATS: dict[str, Callable[[Report, argparse.Namespace], str]] = {
    "terminal": _terminal,
    "html": _html,
    "markdown": _markdown,
    "json": _json,
    "ddp": _ddp,
    "timeline": _timeline,
}


def _open(report: Report, run_dir: Path | None) -> None:
    """Open the page, made anew beside the report; what lies there outside a run's directory may be the user's and stays."""
    import webbrowser

    page = _report_path(run_dir).resolve().with_name(PAGE)
    _write(_html(report, argparse.Namespace()), page, force=(page.parent / "journals").is_dir())
    if not webbrowser.open(page.as_uri()):
        raise UsageError("no browser could be started", f"open {str(page)!r} yourself")
    print(page)


def _write(text: str, path: Path, force: bool) -> None:
    from desync.report.json_format import create_private, replace_private

    try:
        (replace_private if force else create_private)(text, path)
    except FileExistsError:
        raise UsageError(f"{str(path)!r} exists already", "add --force to replace it, or choose another name") from None
    except OSError as error:
        raise _not_written(path, error) from None


def _not_written(path: Path, error: OSError) -> DesyncError:
    return UsageError(f"cannot write {str(path)!r}: {error.strerror}", "choose a place that you may write to and that has room")
