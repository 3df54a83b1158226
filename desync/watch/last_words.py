"""What native code prints before it ends its process: C++'s ``terminate``, failed assertions, glibc's complaints.

No line of these says which rank printed it, and any program may print the same: they are quoted, and nothing is concluded.
"""

from __future__ import annotations

import re

MAX_LINES = 4
MAX_LINE = 400
_MAX_REST = 4096

_WORDS = re.compile(
    rb"^\s{0,8}(?:what\(\): .|terminate called without|Fatal Python error: |double free or corruption|free\(\): invalid"
    rb"|malloc\(\): |corrupted size|munmap_chunk\(\)|[^\n]{1,200}:\d{1,7}: [^\n]{1,200}: Assertion `)"
)


class LastWords:
    """Collects such lines from output that comes in pieces; the newest are kept."""

    def __init__(self) -> None:
        self.lines: tuple[str, ...] = ()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-_MAX_REST:]
        found = [line[:MAX_LINE].decode(errors="replace").strip() for line in lines if _WORDS.match(line[:_MAX_REST])]
        self.lines = (*self.lines, *found)[-MAX_LINES:]

    def forget(self) -> None:
        """A new attempt begins."""
        self.lines = ()
