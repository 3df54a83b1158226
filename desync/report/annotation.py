"""The verdict as a workflow command that GitHub (and what imitates it) turns into an annotation at the line of code."""

from __future__ import annotations

import os

from desync.model import Status
from desync.report import view
from desync.report.model import Place, Report
from desync.report.text import SENTENCE, clean

_LEVELS = {Status.SLOW: "warning", Status.MISMATCH: "error", Status.UNKNOWN: "warning"}


def annotation(report: Report, base: str | None = None) -> str | None:
    """One line ``::error file=…,line=…,title=…::…``; None for a report without a finding.

    The file is relative to ``base`` (the working directory if None), where a checkout usually is; it is left out if it lies
    elsewhere.
    """
    if not report.findings:
        return None
    verdict = report.verdict
    level = _LEVELS.get(verdict.status, "error")
    title = f"desync: {verdict.status.value} ({verdict.cause.value})"
    place = _place(report, os.getcwd() if base is None else base)
    properties = ",".join(f"{name}={_property(value)}" for name, value in [*place, ("title", title)])
    message = "\n".join(filter(None, [clean(verdict.summary, SENTENCE), clean(verdict.advice, SENTENCE)]))
    return f"::{level} {properties}::{_data(message)}"


def _place(report: Report, base: str) -> list[tuple[str, str]]:
    """The culprit's line; without one the line at which others wait."""
    places: list[Place] = sorted(report.verdict.places, key=lambda item: not view.is_culprit(report, item.ranks))
    for item in places:
        for frame in (item.frame, *item.callers):
            relative = frame.file if not os.path.isabs(frame.file) else os.path.relpath(frame.file, base)
            if not relative.startswith("..") and frame.line > 0:
                return [("file", relative), ("line", str(frame.line))]
    return []


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(clean(text, SENTENCE)).replace(":", "%3A").replace(",", "%2C")
