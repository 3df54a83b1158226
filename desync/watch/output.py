"""The job's output: passed through to the user as it comes, and kept in ``output.log``.

Both streams go through pipes into one small process (:mod:`desync.watch.relay`) and not through the watcher.  The choice:

* Pipes read by the watcher would end the job with SIGPIPE when the watcher is killed.
* Files that the job writes itself would survive the watcher, but then the user's terminal would fall silent, and a program that
  opens ``/dev/stderr`` would truncate the log.
* With a relay that outlives the watcher, ``desync watch … > out.txt 2> err.txt`` gives exactly the two files that the job alone
  would give, whatever happens to the watcher, and ``output.log`` has both streams as they came.

Where both streams of the user lead to one file (a terminal, ``2>&1``) the job gets one pipe for both, so that what it writes
stays in order.  Where the user's reader goes away (``| head``) the job's writes fail as they would have failed without desync;
any other fault in passing them on is said and costs the job nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

MAX_READ = 1 << 20
MAX_LAST_READS = 256


class Output:
    """The running relay, and the ends of its pipes that the job is to write to."""

    def __init__(self, log: Path, status_line: bool) -> None:
        """Start the relay.  Raises OSError."""
        together = _lead_to_one_file()
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        out_read, self.stdout = os.pipe()
        err_read, self.stderr = (out_read, os.dup(self.stdout)) if together else os.pipe()
        self._job_ends: tuple[int, ...] = (self.stdout, self.stderr)
        relay = Path(__file__).with_name("relay.py")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file, with numbers as its only arguments
                [sys.executable, "-I", "-S", str(relay), *map(str, (out_read, err_read, handle, int(status_line)))],
                stdin=subprocess.DEVNULL,
                pass_fds=(out_read, err_read, handle),
                start_new_session=True,
            )
        except OSError:
            self.release()
            raise
        finally:
            for number in {out_read, err_read, handle}:
                os.close(number)

    def release(self) -> None:
        """Close our copies of the job's ends: the relay then ends when the job's processes have closed theirs."""
        for number in self._job_ends:
            os.close(number)
        self._job_ends = ()

    def finish(self, limit_s: float) -> bool:
        """Wait until everything is passed on; False if some process still holds the job's output open."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.returncode = 0  # it goes on alone; Popen must not complain of it
            return False
        return True


def _lead_to_one_file() -> bool:
    """Whether the user's two streams are the same file, in which two pipes would lose the order of the job's lines."""
    with contextlib.suppress(OSError):  # one of them is closed
        return os.path.sameopenfile(1, 2)
    return False


class LogTail:
    """Follows ``output.log`` for what the launcher says of its workers."""

    def __init__(self, path: Path, take: Callable[[bytes], None]) -> None:
        self._path = path
        self._take = take
        self._offset = 0
        self.ends_line = True
        """Whether the output so far ends with a whole line (so that a status line may stand below it)."""

    def follow_to_the_end(self) -> None:
        """Hand on all that is there, up to a bound."""
        for _ in range(MAX_LAST_READS):
            if not self.follow():
                return

    def follow(self) -> bool:
        """Hand on what is new, at most ``MAX_READ`` bytes a call; False if there was nothing."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(MAX_READ)
        except OSError:
            return False
        if data:
            self._offset += len(data)
            self.ends_line = data.endswith((b"\n", b"\r"))
            self._take(data)
        return bool(data)
