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
_ENDED = re.compile(rb"(?:Sending|Terminating) process (\d{1,9}) (?:closing|via) signal (SIG[A-Z0-9]{1,10})")
_SPAWN = re.compile(rb"process (\d{1,6}) terminated with (?:signal (SIG[A-Z0-9]{1,10})|exit code (\d{1,3}))")


class ExitCodes:
    """Collects codes from output that comes in pieces."""

    def __init__(self) -> None:
        self.by_pid: dict[int, int] = {}
        """From torchelastic: negative is a signal."""
        self.sent: dict[int, int] = {}
        """Signals with which a launcher ended its processes, by pid: what they died of if nothing better is known."""
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
            elif b" signal SIG" in line and (match := _ENDED.search(line[:MAX_LINE])):
                self._sent(match)

    def _elastic(self, line: bytes) -> None:
        match = _ELASTIC.search(line)
        if match and len(self.by_pid) < MAX_CODES:
            self.by_pid[int(match[2])] = int(match[1])

    def _sent(self, match: re.Match[bytes]) -> None:
        code = _signal_code(match[2].decode())
        if code is not None and len(self.sent) < MAX_CODES:
            self.sent[int(match[1])] = code

    def best(self, pid: int, local_rank: int | None) -> int | None:
        """The most reliable status that the output gives for a process that has ended."""
        by_rank = self.by_local_rank.get(local_rank) if local_rank is not None else None
        return self.by_pid.get(pid, by_rank if by_rank is not None else self.sent.get(pid))

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
