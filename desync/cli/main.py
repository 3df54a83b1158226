"""The command ``desync``: finds the subcommand, and turns errors into one line and an exit status.

Each subcommand is a module of this package with ``NAME``, ``HELP``, ``add_arguments(parser)`` and ``run(arguments) -> int``.
Only the one that is asked for is imported, so that none pays for what another needs.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn, Protocol, cast

from desync import __version__
from desync.errors import DesyncError, UsageError

COMMANDS = ("watch", "report", "explain", "inspect", "scenarios", "doctor")

EXIT_USAGE = 2
EXIT_INTERNAL = 70
"""EX_SOFTWARE of sysexits.h: the fault is desync's own."""
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""What a shell shows for a program that SIGPIPE ended."""

_MESSAGE_LIMIT = 2000
_DESCRIPTION = "Says why a distributed PyTorch job hangs: which rank, which collective, which line, and what to change."
_EXAMPLE = "start with:  desync watch torchrun --nproc-per-node 4 train.py"


class Subcommand(Protocol):
    """What a module of this package offers to be a subcommand."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the subcommand's options."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; returns the exit status.  Raises DesyncError for what a person can act on."""


class _Parser(argparse.ArgumentParser):
    """Reports wrong use as desync reports every error: on one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"see '{self.prog} --help'")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``desync`` with these arguments (default: the process's own); returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _fill_standard_streams()
    try:
        try:
            return _dispatch(arguments)
        finally:
            sys.stdout.flush()  # here, where a closed pipe can still be handled
    except DesyncError as error:
        return _failed(f"error: {error}", error.exit_status)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last place that can turn a defect into a message
        remedy = "this is a defect of desync: please report it, with what DESYNC_DEBUG=1 in the environment adds"
        return _failed(f"internal error: {type(error).__name__}: {error}; {remedy}", EXIT_INTERNAL)


def _fill_standard_streams() -> None:
    """Open /dev/null in the place of each standard stream that was closed at the start (``<&-``).

    Else the next file or pipe gets its number, and is taken for it by whatever is started.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        with contextlib.suppress(OSError):
            if not _is_open(number):
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _dispatch(argv: list[str]) -> int:
    wanted = next((argument for argument in argv if not argument.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        raise UsageError(f"there is no command {wanted!r}", _suggestion(wanted))
    parser = _parser((wanted,) if wanted else COMMANDS)
    if not argv:
        parser.print_help()
        return EXIT_USAGE
    arguments = parser.parse_args(argv)
    if wanted is None:
        parser.error("no command given")
    return _load(wanted).run(arguments)


def _parser(commands: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="desync", description=_DESCRIPTION, epilog=_EXAMPLE)
    parser.add_argument("--version", action="version", version=f"desync {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in commands:
        command = _load(name)
        command.add_arguments(subparsers.add_parser(command.NAME, help=command.HELP, description=command.HELP))
    return parser


def _load(name: str) -> Subcommand:
    return cast("Subcommand", importlib.import_module(f"desync.cli.{name}"))


def _suggestion(wanted: str) -> str:
    near = difflib.get_close_matches(wanted, COMMANDS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"commands are {', '.join(COMMANDS)}"


def _failed(message: str, status: int) -> int:
    from desync.report.text import clean

    if os.environ.get("DESYNC_DEBUG") == "1":
        traceback.print_exc()
    print(f"desync: {clean(message, _MESSAGE_LIMIT)}", file=sys.stderr)
    return status


def _silence_stdout() -> None:
    # The interpreter flushes stdout once more when it ends, and would complain about the closed pipe then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
