"""Starting the job's command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from desync.errors import LaunchError
from desync.watch.output import Output


def find_program(program: str, search_path: str | None) -> str:
    """The file that a command's first word names.  Raises LaunchError if there is none that can be started."""
    found = shutil.which(program, path=search_path)
    if found:
        return found
    if os.sep in program and os.path.exists(program):
        raise LaunchError(f"{program!r} cannot be started (not executable)", "make it executable, or put 'python' before it")
    raise LaunchError(f"command not found: {program!r}", "check its spelling, and that its environment is active")


def launch(command: Sequence[str], environment: Mapping[str, str], output: Output) -> subprocess.Popen[bytes]:
    """Start the command in a process group of its own; to be called before the process has threads.

    A group of its own, so that a signal to the watcher's group reaches the job once, through the watcher, and not twice.
    Raises LaunchError.
    """
    program = find_program(command[0], environment.get("PATH"))
    try:
        return subprocess.Popen(  # noqa: S603 - running the user's command is what this is for
            [command[0], *command[1:]],
            executable=program,
            env=dict(environment),
            stdout=output.stdout,
            stderr=output.stderr,
            preexec_fn=_be_a_group,
        )
    except OSError as error:
        raise LaunchError(f"{command[0]!r} cannot be started ({error.strerror})", "check its first line and rights") from error


def _be_a_group() -> None:
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
