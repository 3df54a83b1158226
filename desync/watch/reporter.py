"""From a diagnosis to report.json and to the user's terminal."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from desync.errors import RunDirectoryError
from desync.model import Diagnosis, Evidence, Status
from desync.report.annotation import annotation
from desync.report.build import build_report
from desync.report.json_format import replace_private, write_report
from desync.report.model import Report, Timing
from desync.report.terminal import render
from desync.report.text import ranks_phrase
from desync.watch.status_line import Voice

REPORT_FILE = "report.json"
PAGE_FILE = "report.html"


class Reporter:
    """Writes the run's report and shows it."""

    def __init__(self, run_directory: Path, voice: Voice, *, annotate: bool = False, kill: bool = False) -> None:
        self.path = run_directory / REPORT_FILE
        self.annotate = annotate
        self.kill = kill
        """Whether a job that hangs is ended, and not left to the user."""
        self.voice = voice
        self._shown: tuple[object, ...] | None = None
        self._complained = False

    def write(self, evidence: Evidence, diagnosis: Diagnosis, timing: Timing, notes: tuple[str, ...] = ()) -> Report:
        """Write report.json; a run directory that cannot be written any more is said once, and the job goes on."""
        report = build_report(evidence, diagnosis, timing)
        report = replace(report, notes=tuple(dict.fromkeys((*report.notes, *notes))))
        try:
            write_report(report, self.path)
        except RunDirectoryError as error:
            if not self._complained:
                self.voice.say(str(error))
                self._complained = True
        return report

    def announce(self, report: Report) -> None:
        """One line at the moment of detection; the report follows when the stacks are there."""
        self.voice.say(f"{headline(report)}; taking stacks")

    def show(self, report: Report) -> None:
        """Render the report on standard error, unless it says what was shown already."""
        verdict, at = report.verdict, report.divergence
        where = (at.group, at.seq) if at else None
        key = (report.job.attempt, verdict.status, verdict.cause, verdict.culprit_ranks, where)
        if key == self._shown:
            return
        self._shown = key
        self.voice.clear()
        with contextlib.suppress(OSError, ValueError):
            render(report, _Console(file=sys.stderr, soft_wrap=False))
            if self.annotate and (line := annotation(report)):
                print(line, file=sys.stderr, flush=True)
        page = self._write_page(report) or self.path
        if verdict.status is Status.HANG and report.job.ended is None and not self.kill:
            self.voice.say(f"the job is left as it is, Ctrl-C ends it; the report so far: {page}", limit=1000)

    def _write_page(self, report: Report) -> Path | None:
        """Write report.html; returns its place, or None if that failed: a page less must not cost the rest."""
        from desync.report.html import render_html  # here, where the job does not wait for it

        path = self.path.with_name(PAGE_FILE)
        try:
            replace_private(render_html(report), path)
        except Exception as error:  # noqa: BLE001 - report.json is there, and the page can be made again from it
            self.voice.say(f"{PAGE_FILE} cannot be written: {error}")
            return None
        return path

    def close(self, report: Report) -> None:
        """The last line: what it was, and where everything is."""
        place = self._write_page(report) or self.path
        self.voice.say(f"{headline(report)}; report: {place}", limit=1000)


class _Console(Console):
    """A console whose reader may go: rich would end the process, and with it the watch over the job."""

    def on_broken_pipe(self) -> None:
        """Say nothing more."""
        self.quiet = True


def headline(report: Report) -> str:
    """The verdict in a few words."""
    verdict = report.verdict
    if not report.findings:
        return verdict.status.value
    who = f", {ranks_phrase(verdict.culprit_ranks)}" if verdict.culprit_ranks else ""
    return f"{verdict.status.value} ({verdict.cause.value}, {verdict.certainty.value}{who})"
