"""``report.json``: the report as text, and back."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from desync.errors import ReportError, RunDirectoryError
from desync.report.codec import DecodeError, decode, encode
from desync.report.model import SCHEMA, Report, Window

_FOREIGN = "name a run directory of `desync watch`, or a report.json from one"


def to_json(report: Report) -> str:
    """The report as JSON text, in ASCII (what a terminal shows of it is harmless), ending with a line end."""
    content: dict[str, Any] = {"schema": report.schema}
    content.update(encode(report))
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> Report:
    """The report that ``text`` holds; raises :class:`desync.errors.ReportError` for anything else."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ReportError("this is no JSON", _FOREIGN) from None
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, str) or not schema.startswith("desync.report/"):
        raise ReportError("this JSON is no desync report (it has no desync schema)", _FOREIGN)
    if schema != SCHEMA:
        raise ReportError(f"the report has schema {schema[:40]!r}, this desync reads {SCHEMA}", "use the desync that wrote it")
    try:
        report = decode(Report, value)
        _check_window(report.window)
        return report
    except DecodeError as error:
        raise ReportError(f"the report is damaged: {error}", "run `desync watch` again, or take a sound copy") from None


def _check_window(window: Window | None) -> None:
    """Rows must have a cell for each column, and the divergence must be one of them."""
    if window is None:
        return
    if not 0 <= window.at < len(window.columns):
        raise DecodeError("report.window.at is no column")
    if any(len(row.cells) != len(window.columns) for row in window.rows):
        raise DecodeError("report.window.rows do not fit its columns")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def write_report(report: Report, path: Path) -> None:
    """Write the report to ``path`` in one piece, readable by its owner only; raises RunDirectoryError if it cannot."""
    try:
        replace_private(to_json(report), path)
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {str(path)!r}: {error.strerror}", "choose a run directory that you may write to and that has room"
        ) from error


def replace_private(text: str, path: Path) -> None:
    """Write a file of mode 0600 at ``path``, in place of what is there, so that nobody ever sees a part of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def create_private(text: str, path: Path) -> None:
    """Write a file of mode 0600 at ``path``; raises FileExistsError, and touches nothing, if there is one."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
