"""What can go wrong for a user of desync, each with its remedy and its exit status.

Only errors that a person can act on live here.  The message says what is wrong and with which value; the remedy says what to
do.  The command line prints both on one line and exits with ``exit_status``; a traceback appears only with ``DESYNC_DEBUG=1``.
"""

from __future__ import annotations

from typing import ClassVar


class DesyncError(Exception):
    """Base of every error that desync shows to its user.

    ``message`` names what is wrong, with the value; ``remedy`` what to do about it.
    """

    exit_status: ClassVar[int] = 2

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message = message
        self.remedy = remedy


class UsageError(DesyncError):
    """The command line asks for something that cannot be done."""


class RunDirectoryError(DesyncError):
    """A run directory is missing, is none, or cannot be written."""


class JournalError(DesyncError):
    """A file is no journal, or is too damaged to be read at all."""


class ReportError(DesyncError):
    """A file is no report, or is damaged."""


class LaunchError(DesyncError):
    """The job's command could not be started."""


class EvidenceError(DesyncError):
    """What is left of a job (dumps, logs, archives) cannot be found or read."""


class InspectError(DesyncError):
    """No job that runs can be looked at, or it is not clear which one is meant."""
