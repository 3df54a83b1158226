"""Starting the job's command."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from desync.errors import LaunchError
from desync.watch.output import Output
from desync.watch.signals import BLOCKED_BEFORE


def find_program(program: str, search_path: str | None) -> str:
    """The file that a command's first word names.  Raises LaunchError if there is none that can be started."""
    found = shutil.which(program, path=search_path)
    if found:
        return found
    if os.sep in program and os.path.exists(program):
        raise LaunchError(f"{program!r} cannot be started (not executable)", "make it executable, or put 'python' before it")
    raise LaunchError(f"command not found: {program!r}", "check its spelling, and that its environment is active")


def in_foreground() -> bool:
    """Whether this process's group is the one that may read its terminal, and that the terminal's signals go to."""
    with contextlib.suppress(OSError):
        if os.tcgetpgrp(0) == os.getpgrp():
            return True
    with contextlib.suppress(OSError):  # a job whose standard input is a file may still ask the terminal for a password
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


def launch(
    command: Sequence[str], environment: Mapping[str, str], output: Output, *, own_group: bool
) -> subprocess.Popen[bytes]:
    """Start the command; to be called before the process has threads.

    With a process group of its own a signal to the watcher's group reaches the job once, through the watcher, and not twice.
    In the foreground of a terminal it has to stay in the watcher's: any other group is stopped when it reads.
    What else the shell has opened for the job (``<(...)``) stays open.  Raises LaunchError.
    """
    program = find_program(command[0], environment.get("PATH"))
    try:
        return subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
            [command[0], *command[1:]],
            executable=program,
            env=dict(environment),
            stdout=output.stdout,
            stderr=output.stderr,
            close_fds=False,
            preexec_fn=_begin_in_own_group if own_group else _begin,
        )
    except OSError as error:
        raise LaunchError(f"{command[0]!r} cannot be started ({error.strerror})", "check its first line and rights") from error


def _begin_in_own_group() -> None:
    os.setpgid(0, 0)
    _begin()


def _begin() -> None:
    # A Ctrl-C from now on has to end this process, and not to be taken for a failed start.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, BLOCKED_BEFORE)
