"""The process that stands between a job's output and the user's: it copies both streams on, and into output.log.

It is a process of its own so that the job does not depend on the watcher: if the watcher is killed, the job's writes still find
a reader, and the user still sees them.  It ends when every process of the job has closed its output.

Run as a file by ``desync.watch.output`` with the numbers of open files: the two pipes to read, and the log; its standard output
and standard error are the user's.  It imports next to nothing, so that it starts at once and stays small.
"""

import errno
import os
import signal
import sys
import threading

CHUNK = 1 << 16
CLEAR = b"\x1b[K"


class Terminal:
    """What the relay knows of a terminal that it shares with the watcher's status line."""

    def __init__(self) -> None:
        self.at_line_start = True
        self.lock = threading.Lock()


def write_all(target: int, data: bytes) -> bool:
    """Write it all; False if the target takes no more (closed pipe, lost terminal, full disk)."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return False
            threading.Event().wait(0.01)  # the user's terminal was set to non-blocking by some program
    return True


def show(target: int, data: bytes, terminal: "Terminal | None") -> bool:
    """Write to the user's stream; a status line that stands where the output begins is wiped first."""
    if terminal is None:
        return write_all(target, data)
    with terminal.lock:
        prefix = CLEAR if terminal.at_line_start else b""
        terminal.at_line_start = data.endswith(b"\n")
        return write_all(target, prefix + data)


def copy(source: int, target: int, log: int, terminal: "Terminal | None") -> None:
    """Copy until the last writer has closed.  A target that fails is left out from then on; the job never notices."""
    shown = logged = True
    while data := os.read(source, CHUNK):
        if logged and not write_all(log, data):
            logged = False
            write_all(2, b"\ndesync: output.log is incomplete from here on: it cannot be written\n")
        if shown:
            shown = show(target, data, terminal)


def main() -> None:
    """Copy both streams, each in a thread of its own: one that is held up does not hold up the other."""
    # Whatever ends the job or the watcher, what the job still says has to be passed on; end of file ends the relay.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    stdout, stderr, log, status = map(int, sys.argv[1:5])
    shared = Terminal() if status else None
    first = shared if os.isatty(1) else None
    second = shared if os.isatty(2) else None
    thread = threading.Thread(target=copy, args=(stderr, 2, log, second))
    thread.start()
    copy(stdout, 1, log, first)
    thread.join()


if __name__ == "__main__":
    main()
