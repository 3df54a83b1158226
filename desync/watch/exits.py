"""Exit codes of ranks as their launcher reports them in the job's output.

Only a fallback: where the kernel still told us (:class:`desync.watch.processes.ExitWatch`), that wins.  The output is foreign:
a line can claim anything, so a code counts only for a process that is known to be a rank and known to have ended.
"""

from __future__ import annotations

import re
import signal

MAX_LINE = 4096
MAX_CODES = 65536

_ELASTIC = re.compile(rb"exitcode\s*:\s*(-?\d{1,3})\)? .{0,40}?\(?pid: (\d{1,9})\)")
_SPAWN = re.compile(rb"process (\d{1,6}) terminated with (?:signal (SIG[A-Z0-9]{1,10})|exit code (\d{1,3}))")


class ExitCodes:
    """Collects codes from output that comes in pieces."""

    def __init__(self) -> None:
        self.by_pid: dict[int, int] = {}
        """From torchelastic: negative is a signal."""
        self.by_local_rank: dict[int, int] = {}
        """From torch.multiprocessing.spawn, which names the index of the process and not its pid."""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-MAX_LINE:]
        for line in lines:
            if b"exitcode" in line:
                self._elastic(line[:MAX_LINE])
            elif b" terminated with " in line:
                self._spawn(line[:MAX_LINE])

    def _elastic(self, line: bytes) -> None:
        match = _ELASTIC.search(line)
        if match and len(self.by_pid) < MAX_CODES:
            self.by_pid[int(match[2])] = int(match[1])

    def _spawn(self, line: bytes) -> None:
        match = _SPAWN.search(line)
        if not match or len(self.by_local_rank) >= MAX_CODES:
            return
        code = _signal_code(match[2].decode()) if match[2] else int(match[3])
        if code is not None:
            self.by_local_rank[int(match[1])] = code


def _signal_code(name: str) -> int | None:
    try:
        return -signal.Signals[name]
    except KeyError:
        return None
