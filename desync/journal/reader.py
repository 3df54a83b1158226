"""Reading a journal from outside: while its rank writes, or after its end.

A journal is foreign input: its rank may have been killed in the middle of a write, or the file may be anything.  Whatever does
not fit is left out and said in the trace's notes; only a file that is no journal at all raises :class:`JournalError`.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import sys
import zlib
from array import array
from dataclasses import dataclass
from itertools import compress
from typing import Any

from desync.errors import JournalError
from desync.journal.decode import Heap, Record, TraceBuilder
from desync.journal.layout import (
    ENTRY_HEAD,
    HEADER_BYTES,
    MAGIC,
    MAX_ENTRY_BYTES,
    MAX_SLOTS,
    RECORD_WORDS,
    VERSION,
    WORD,
    Field,
    Header,
    RecordType,
    file_bytes,
    heap_offset,
)
from desync.model import Call, Trace

MAX_FILE_BYTES = 1 << 30
MAX_TIME = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Pulse:
    """A cheap look at a journal: enough to see whether its rank moves."""

    records: int
    """Serial number of the newest record."""
    operations: int
    pending_since: int | None
    """When the newest record was entered, if it is an operation or mark that has not come to its end; epoch ns."""
    steps: int
    batches: int


class JournalReader:
    """An open journal.

    Raises :class:`JournalError` if the file cannot be opened or is no journal (yet).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # Opening a pipe would wait for a writer.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(handle)
                size = status.st_size
                if not stat.S_ISREG(status.st_mode) or not HEADER_BYTES <= size <= MAX_FILE_BYTES:
                    raise _refused(path, f"is no file or has {size} bytes")
                self._map = mmap.mmap(handle, size, access=mmap.ACCESS_READ)
            finally:
                os.close(handle)
        except (OSError, ValueError) as error:
            raise _refused(path, f"cannot be read ({error})") from error
        self._header = array("q", self._map[:HEADER_BYTES])
        self._check(size)
        self.slots = self._header[Header.SLOTS]
        self._heap_at = heap_offset(self.slots)
        self._heap = Heap()
        self._heap_read = 0

    def _check(self, size: int) -> None:
        header = self._header
        if header[Header.MAGIC] != MAGIC:
            raise _refused(self.path, "does not begin as a journal does")
        if header[Header.VERSION] != VERSION:
            raise _refused(self.path, f"is of version {header[Header.VERSION]}, this desync reads {VERSION}")
        slots, heap = header[Header.SLOTS], header[Header.HEAP_BYTES]
        if not 0 < slots <= MAX_SLOTS or heap < 0 or file_bytes(slots, heap) != size:
            raise _refused(self.path, f"says {slots} slots and {heap} bytes of heap but has {size} bytes")

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()

    def release(self) -> None:
        """Give back the memory into which the file was mapped by reading it; the next read maps it again.

        Two megabytes a journal, which a thousand ranks would keep for as long as their journals are open.
        """
        self._map.madvise(mmap.MADV_DONTNEED)

    @property
    def pid(self) -> int:
        """Process that writes (wrote) it."""
        return self._header[Header.PID]

    @property
    def process_start(self) -> int:
        """Its start in clock ticks since boot; 0 if not known."""
        return self._header[Header.PROCESS_START]

    @property
    def attempt(self) -> int:
        """torchelastic's restart count."""
        return self._header[Header.ATTEMPT]

    @property
    def ancestor(self) -> int | None:
        """An ancestor of the process that had claimed a rank before it."""
        return self._header[Header.ANCESTOR] or None

    @property
    def began(self) -> int:
        """When it was opened; epoch ns."""
        return self._header[Header.START_WALL]

    @property
    def rank(self) -> int | None:
        """Global rank, once known."""
        rank = self._word(Header.RANK)
        return rank - 1 if rank > 0 else None

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job, once known."""
        return self._word(Header.WORLD_SIZE) or None

    @property
    def exit_announced(self) -> bool:
        """Whether the process said that it ends."""
        return bool(self._word(Header.EXIT_TIME))

    @property
    def exit_time(self) -> int | None:
        """When the process said that it ends; epoch ns."""
        time = self._word(Header.EXIT_TIME)
        return self.wall(time) if time else None

    @property
    def has_operations(self) -> bool:
        """Whether its process has entered any operation, ``init_process_group`` included."""
        return self._word(Header.OPERATIONS) > 0

    def _word(self, word: int) -> int:
        return int.from_bytes(self._map[word * WORD : word * WORD + WORD], sys.byteorder, signed=True)

    def wall(self, monotonic: int) -> int:
        """Epoch ns of a monotonic time of this journal; a damaged time is cut to what 64 bits hold."""
        epoch = monotonic + self._header[Header.START_WALL] - self._header[Header.START_MONOTONIC]
        return max(-MAX_TIME, min(epoch, MAX_TIME))

    def pulse(self) -> Pulse:
        """A few words of the header and the newest record."""
        newest = self._word(Header.RECORDS)
        at = HEADER_BYTES // WORD + newest % self.slots * RECORD_WORDS
        pending = None
        if newest and self._word(at) == newest:
            entered, finished = self._word(at + Field.ENTERED), self._word(at + Field.COMPLETED)
            pending = self.wall(entered) if not finished else None
        return Pulse(
            records=newest,
            operations=self._word(Header.OPERATIONS),
            pending_since=pending,
            steps=self._word(Header.STEPS),
            batches=self._word(Header.BATCHES),
        )

    def content(self) -> bytes:
        """Header and ring as they are now: while they are equal, :meth:`trace` says the same."""
        return self._map[: self._heap_at]

    def newest_operation(self) -> str | None:
        """Name of the operation that was entered last, if the newest record is one."""
        newest = self._word(Header.RECORDS)
        at = HEADER_BYTES // WORD + newest % self.slots * RECORD_WORDS
        if self._word(at) != newest or self._word(at + Field.TYPE) & 0xFF != RecordType.OPERATION:
            return None
        self._read_heap(array("q", self._map[:HEADER_BYTES]))
        call = self._heap.get(self._word(at + Field.CALL))
        return call.op if isinstance(call, Call) else None

    def trace(self, node: str | None = None) -> Trace | None:
        """All that the journal says now; None while its rank is not known."""
        if self._word(Header.RANK) <= 0:
            return None
        # The rank may go on writing while its ring is copied, so that the end of a record can be seen without its middle.  A
        # record's last word is written last: where a first copy has it, a second one has all of the record.
        earlier, words = array("q", self.content()), array("q", self.content())
        # What records refer to is in the heap before them, so that it is read after them.
        self._read_heap(array("q", self._map[:HEADER_BYTES]))
        header = words[: HEADER_BYTES // WORD]
        builder = TraceBuilder(header, self._heap, self.wall, node)
        rings = earlier[HEADER_BYTES // WORD :], words[HEADER_BYTES // WORD :]
        records, torn = _records(*rings, self.slots, earlier[Header.RECORDS])
        return builder.build(records, torn)

    def info(self) -> dict[str, Any]:
        """What the recorder said of its surroundings (torch's version, node)."""
        self._read_heap(array("q", self._map[:HEADER_BYTES]))
        return self._heap.info

    def _read_heap(self, header: array[int]) -> None:
        end = min(header[Header.HEAP_USED], header[Header.HEAP_BYTES])
        while self._heap_read + ENTRY_HEAD.size <= end:
            at = self._heap_at + self._heap_read
            length, check = ENTRY_HEAD.unpack_from(self._map, at)
            if not 0 < length <= min(MAX_ENTRY_BYTES, end - self._heap_read - ENTRY_HEAD.size):
                self._heap.damaged = True
                return
            data = self._map[at + ENTRY_HEAD.size : at + ENTRY_HEAD.size + length]
            self._heap.add(_parse(data) if zlib.crc32(data) == check else None)
            self._heap_read += ENTRY_HEAD.size + -(-length // WORD) * WORD


def _parse(data: bytes) -> tuple[str, Any] | None:
    try:
        entry = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str):
        return entry[0], entry[1]
    return None


def _records(earlier: array[int], ring: array[int], slots: int, newest: int) -> tuple[list[Record], int]:
    """The records in the order in which they were entered, and how many of them are torn.

    Those that a ring copied ``earlier`` has not whole are torn.  Those that were overwritten meanwhile, and those before them,
    are no longer in the ring.
    """
    newest = max(newest, 0)
    # The rank may have been killed between the record and the header's word for it.
    while all(copy[(newest + 1) % slots * RECORD_WORDS] == newest + 1 for copy in (earlier, ring)):
        newest += 1
    oldest = max(1, newest - slots + 1)
    columns, before = (_columns(copy, oldest, newest, slots) for copy in (ring, earlier))
    expected = range(oldest, newest + 1)
    ends = list(zip(columns[Field.SERIAL], columns[Field.CHECK], before[Field.SERIAL], before[Field.CHECK], strict=True))
    sound = [serials == (want,) * 4 for serials, want in zip(ends, expected, strict=True)]
    overwritten = [serial > newest and (serial - want) % slots == 0 for (serial, *_), want in zip(ends, expected, strict=True)]
    first = max((place + 1 for place, newer in enumerate(overwritten) if newer), default=0)
    kept = list(zip(*(compress(column[first:], sound[first:]) for column in columns), strict=True))
    return kept, len(sound) - first - len(kept)


def _columns(ring: array[int], oldest: int, newest: int, slots: int) -> list[array[int]]:
    """Each word of the records from the ``oldest`` to the ``newest``, in their order."""
    begin = oldest % slots * RECORD_WORDS
    ordered = (ring[begin:] + ring[:begin])[: (newest - oldest + 1) * RECORD_WORDS]
    return [ordered[word::RECORD_WORDS] for word in range(RECORD_WORDS)]


def _refused(path: str, why: str) -> JournalError:
    return JournalError(f"{path} {why}", "give a journal that desync wrote (journals/*.journal in a run directory)")
