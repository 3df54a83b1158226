"""Streams a log of any size and lets through the lines that can mean something.

A gigabyte of training output holds a few thousand such lines.  Each chunk is searched for short anchors with ``bytes.find``,
which runs at the speed of memory; only the lines around a hit become text.  Progress bars end with a carriage return and glue
the next line to themselves, so that a carriage return ends a line as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

CHUNK = 1 << 20
MAX_LINE = 64 << 10
"""A longer line is cut to this around its anchor."""

ANCHORS: tuple[bytes, ...] = (
    b".cpp:",  # every line of torch's C++
    b" NCCL ",
    b"(most recent call last)",  # without the word before it, which rich colours by itself
    b"Error: ",
    b"elastic",
    b"in store based barrier",
    b"ut of memory",
    b"Killed process ",
    b"oom_kill event",
    b": error: ",  # of srun and slurmstepd
    b"NVRM: Xid (PCI:",
    b" exited on signal ",
    b"Setting OMP_NUM_THREADS",
    b" world_rank=",
    b"world_size",
    b"world size",
)
"""Short strings, one of which is in every line that :mod:`~desync.evidence.logs.patterns` understands (or in one shortly
before it, for the lines of a block).  Each costs a pass over the file, so that there are few; a longer one is found faster."""

_RUNNING = b"Running collective: "
_FRAME = b"frame #"
_NCCL_INFO = b" NCCL INFO "
_NCCL_WORDS = (b"Init COMPLETE", b"port active", b"closed", b"error", b"[E")
MAX_SPEAKERS = 65536

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class LineScanner:
    """The lines of one stream that hold an anchor, and as many lines after them as the reader asks for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.follow = 0
        """How many of the next lines are wanted whatever they hold; the reader sets it."""
        self.followed = False
        """Whether the newest line was wanted for that."""
        self.head = b""
        """The stream's beginning, up to MAX_LINE bytes."""
        self.tail = b""
        """Its end."""
        self.before = b""
        """What came before the newest line, up to MAX_LINE bytes."""
        self.start = 0
        """Where the newest line begins, in bytes from the stream's beginning."""
        self.place = 0
        """Where it ends."""
        self.size = 0
        """How many bytes have been read."""

    def __iter__(self) -> Iterator[str]:
        carried = b""
        while data := self._stream.read(CHUNK):
            if not self.head:
                self.head = data[:MAX_LINE]
            self.size += len(data)
            chunk = carried + data
            self.tail = chunk[-MAX_LINE:]
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
            if not end and len(chunk) < CHUNK:
                carried = chunk
                continue
            yield from self._lines(chunk, end or len(chunk), self.size - len(chunk))
            carried = chunk[end:] if end else b""
        if carried:
            yield from self._lines(carried, len(carried), self.size - len(carried))

    def after(self, place: int) -> bytes:
        """What comes after a place, if that is more than MAX_LINE bytes only the end of it; to be asked at the end."""
        left = self.size - place
        return self.tail[len(self.tail) - left :] if left < len(self.tail) else self.tail

    def _lines(self, chunk: bytes, end: int, first: int) -> Iterator[str]:
        newest: dict[bytes, list[bytes]] = {}
        for start, line in self._hits(chunk, end):
            if _RUNNING in line:
                _keep_newest(newest, line)
            elif self._wanted(line):
                self.before = chunk[max(0, start - MAX_LINE) : start]
                self.start = first + start
                self.place = self.start + len(line)
                yield _text(line)
        for lines in newest.values():
            yield from map(_text, lines)

    def _wanted(self, line: bytes) -> bool:
        """Whether a line is worth the trouble of becoming text; most of NCCL's own are not."""
        self.followed = self.follow > 0
        if self.followed:
            self.follow -= 1
            return _FRAME not in line[:80]
        return _NCCL_INFO not in line or any(word in line for word in _NCCL_WORDS)

    def _hits(self, chunk: bytes, end: int) -> Iterator[tuple[int, bytes]]:
        """The lines with an anchor, or that are wanted whatever they hold, with their places."""
        cursor = 0
        hits = [chunk.find(anchor, 0, end) for anchor in ANCHORS]
        while cursor < end:
            if self.follow:
                hit = cursor
            else:
                known = [found for found in hits if found >= 0]
                if not known:
                    return
                hit = min(known)
            start, stop = _bounds(chunk, cursor, hit, end)
            yield start, chunk[max(start, hit - MAX_LINE // 2) : min(stop, hit + MAX_LINE)]
            cursor = stop + 1
            for index, found in enumerate(hits):
                if 0 <= found < cursor:
                    hits[index] = chunk.find(ANCHORS[index], cursor, end)


def _keep_newest(newest: dict[bytes, list[bytes]], line: bytes) -> None:
    """DETAIL prints a line for every collective of every rank; the newest two of each rank say all."""
    before = line[: line.find(_RUNNING)]
    key = before[: before.find(b"[I")] + before[before.rfind(b"[Rank") :]
    if key in newest or len(newest) < MAX_SPEAKERS:
        kept = newest.setdefault(key, [])
        kept.append(line)
        del kept[:-2]


def _bounds(chunk: bytes, low: int, hit: int, high: int) -> tuple[int, int]:
    """Start and end (without its line feed) of the line around a place; a carriage return ends a line, too."""
    start = max(chunk.rfind(b"\n", low, hit), chunk.rfind(b"\r", low, hit), low - 1) + 1
    stop = chunk.find(b"\n", hit, high)
    stop = high if stop < 0 else stop
    inner = chunk.find(b"\r", hit, stop)
    return start, stop if inner < 0 else inner


def _text(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return _ANSI.sub("", text) if "\x1b" in text else text


def uncoloured(data: bytes) -> str:
    """Bytes of a log as text without colours."""
    return _ANSI.sub("", data.decode("utf-8", "replace"))


def plain(data: bytes) -> str:
    """Bytes of a log as text without colours, a line feed after each progress bar."""
    return uncoloured(data).replace("\r", "\n")
