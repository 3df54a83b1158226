"""The process that stands between a job's output and the user's: it copies both streams on, and into output.log.

It is a process of its own so that the job does not depend on the watcher: if the watcher is killed, the job's writes still find
a reader, and the user still sees them.  It ends when every process of the job has closed its output, or nobody reads it.

Run as a file by ``desync.watch.output`` with the numbers of open files: the two pipes to read (the same number twice where one
pipe carries both streams), and the log; its standard output and standard error are the user's.  It imports next to nothing, so
that it starts at once and stays small.
"""

import contextlib
import errno
import os
import select
import signal
import sys
import threading

CHUNK = 1 << 16
"""As much as a pipe holds."""
CLEAR = b"\x1b[K"


class Terminal:
    """What the relay knows of a terminal that it shares with the watcher's status line."""

    def __init__(self) -> None:
        self.at_line_start = True
        self.lock = threading.Lock()


class Target:
    """A file that output is written to.

    A write that fails costs the job nothing: the loss is said once, and what comes next is tried anew, for a full disk may have
    room again.
    """

    def __init__(self, number: int, name: str, terminal: "Terminal | None" = None) -> None:
        """``name``: how to call it before the user; ``terminal``: where a status line may have to be wiped."""
        self._number = number
        self._name = name
        self._terminal = terminal
        self._told = False

    def take(self, data: bytes) -> bool:
        """Write it; False if there is nobody left to read it."""
        error = self._show(data)
        if error is None:
            return True
        if error.errno == errno.EPIPE:
            return False
        if not self._told:
            self._told = say(f"{self._name} cannot be written ({error.strerror}): some of it is lost")
        return True

    def _show(self, data: bytes) -> "OSError | None":
        """Write it; a status line that stands where the output begins is wiped first."""
        if self._terminal is None:
            return write_all(self._number, data)
        with self._terminal.lock:
            prefix = CLEAR if self._terminal.at_line_start else b""
            self._terminal.at_line_start = data.endswith(b"\n")
            return write_all(self._number, prefix + data)


def write_all(number: int, data: bytes) -> "OSError | None":
    """Write it all; returns why the file takes no more (closed pipe, lost terminal, full disk)."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(number, view) :]
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return error
            threading.Event().wait(0.01)  # the user's terminal was set to non-blocking by some program
    return None


def say(text: str) -> bool:
    """Tell the user, unless standard error is held up just now (False): the job must not have to wait for our words."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if not poll.poll(0):
        return False
    with contextlib.suppress(OSError):
        os.write(2, f"\ndesync: {text}\n".encode())
    return True


def copy(source: int, target: Target, log: Target) -> None:
    """Copy until the last writer has closed, or the user's reader is gone."""
    while data := os.read(source, CHUNK):
        log.take(data)
        if not target.take(data):
            turn_away(source, log)
            return


def turn_away(source: int, log: Target) -> None:
    """Let the job meet the closed pipe that it would have met without us: else ``| head`` would never end it."""
    os.set_blocking(source, False)
    with contextlib.suppress(BlockingIOError):
        log.take(os.read(source, CHUNK))  # the job takes what lies in the pipe for written
    os.close(source)


def main() -> None:
    """Copy both streams, each in a thread of its own: one that is held up does not hold up the other."""
    # Whatever ends the job or the watcher, what the job still says has to be passed on; end of file ends the relay.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    stdout, stderr, log_number, status = map(int, sys.argv[1:5])
    shared = Terminal() if status else None
    log = Target(log_number, "output.log")
    first = Target(1, "the job's standard output", shared if os.isatty(1) else None)
    if stderr == stdout:
        copy(stdout, first, log)
        return
    second = Target(2, "the job's standard error", shared if os.isatty(2) else None)
    thread = threading.Thread(target=copy, args=(stderr, second, log))
    thread.start()
    copy(stdout, first, log)
    thread.join()


if __name__ == "__main__":
    main()
