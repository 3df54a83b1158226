"""Writing a journal from inside a rank.

Nothing here takes a lock on the way that every operation takes: a serial number is drawn from an ``itertools.count`` (atomic
under the GIL), and the record goes into a slot that no other thread has.  Interning, which is rare, takes a re-entrant lock,
because a signal handler of the user may run in the middle of it and call a collective itself: what that would intern is not
recorded, since the heap is then half written.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import threading
import time
import zlib
from collections.abc import Hashable
from typing import Any

from desync.journal.layout import (
    DEFAULT_HEAP_BYTES,
    DEFAULT_SLOTS,
    ENTRY_HEAD,
    HEADER_BYTES,
    MAGIC,
    MAX_ENTRY_BYTES,
    MAX_SLOTS,
    RECORD,
    RECORD_BYTES,
    RECORD_WORDS,
    VERSION,
    WORD,
    Field,
    Flag,
    Header,
    file_bytes,
    heap_offset,
)

_RING_WORD = HEADER_BYTES // WORD
_now = time.monotonic_ns
_BULK = frozenset({"call", "site", "label"})
"""Kinds of entries that may be many: the last sixteenth of the heap is kept for the others."""
MAX_CALL_BYTES = 4096
"""Larger than nearly every entry of these kinds."""
_SMALLEST_ENTRY = ENTRY_HEAD.size + WORD


class JournalWriter:
    """One rank's journal, open for writing.

    The constructor raises ``OSError`` if the file cannot be made or its room cannot be reserved, and ``ValueError`` for sizes
    that no journal can have.  After that no method raises for lack of room: an entry that does not fit gets number 0 ("not
    recorded") and is counted.
    """

    def __init__(
        self,
        path: str,
        *,
        attempt: int = 0,
        ancestor: int = 0,
        slots: int = DEFAULT_SLOTS,
        heap_bytes: int = DEFAULT_HEAP_BYTES,
    ) -> None:
        if not 0 < slots <= MAX_SLOTS or heap_bytes < 0:
            raise ValueError(f"a journal cannot have {slots} slots and {heap_bytes} bytes of heap")
        self.path = path
        self.slots = slots
        size = file_bytes(slots, heap_bytes)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # A sparse file on a full disk would end the job with SIGBUS at some later write; reserve the room now.
            os.posix_fallocate(handle, 0, size)
            self._map = mmap.mmap(handle, size)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(handle)
        self.words = memoryview(self._map).cast("q")
        self._heap_at = heap_offset(slots)
        self._heap_bytes = heap_bytes
        # Bytes used and number of entries: one tuple, so that an exception of a signal handler cannot part them.
        self._filled = (0, 0)
        self._bulk_bytes = heap_bytes - heap_bytes // 16
        self._numbers: dict[Hashable, int] = {}
        self._lock = threading.RLock()
        self._appending = False
        self._serial = itertools.count(1)
        self._operations = itertools.count(1)
        self._pack = RECORD.pack_into
        self._write_identity(attempt, ancestor)

    def _write_identity(self, attempt: int, ancestor: int) -> None:
        words = self.words
        words[Header.VERSION] = VERSION
        words[Header.PID] = os.getpid()
        words[Header.ATTEMPT] = attempt
        words[Header.SLOTS] = self.slots
        words[Header.HEAP_BYTES] = self._heap_bytes
        words[Header.START_WALL] = time.time_ns()
        words[Header.START_MONOTONIC] = _now()
        words[Header.PROCESS_START] = _process_start()
        words[Header.ANCESTOR] = ancestor
        words[Header.MAGIC] = MAGIC  # last: a file without it is not ready to be read

    def identify(self, rank: int | None, world_size: int | None) -> None:
        """Say which rank this is, as soon as that is known."""
        if rank is not None:
            self.words[Header.RANK] = rank + 1
        if world_size is not None:
            self.words[Header.WORLD_SIZE] = world_size

    def intern(self, kind: str, payload: Any, key: Hashable | None = None) -> int:
        """The number under which records can refer to ``payload`` (anything that JSON can hold); 0 if there is no room.

        Equal keys get equal numbers; without a key every call makes an entry of its own.
        """
        with self._lock:
            if key is not None and (number := self._numbers.get((kind, key))) is not None:
                return number
            room = (self._bulk_bytes if kind in _BULK else self._heap_bytes) - self._filled[0]
            if self._appending or room < _SMALLEST_ENTRY:
                return self._refused()
            self._appending = True
            try:
                number = self._append(_encoded(kind, payload), room)
            finally:
                self._appending = False
            # What found no room is not remembered: neither the heap nor this process may grow without bounds.
            if key is not None and number:
                self._numbers[(kind, key)] = number
            return number

    def _append(self, data: bytes, room: int) -> int:
        needed = -(-len(data) // WORD) * WORD + ENTRY_HEAD.size
        if needed > room or len(data) > MAX_ENTRY_BYTES:
            return self._refused()
        used, entries = self._filled
        at = self._heap_at + used
        self._map[at + ENTRY_HEAD.size : at + ENTRY_HEAD.size + len(data)] = data
        ENTRY_HEAD.pack_into(self._map, at, len(data), zlib.crc32(data))
        self._filled = (used + needed, entries + 1)
        self.words[Header.HEAP_USED] = used + needed
        self.words[Header.HEAP_ENTRIES] = entries + 1
        return entries + 1

    @property
    def full(self) -> bool:
        """Whether what finds no room now will never find any."""
        return self._bulk_bytes - self._filled[0] < MAX_CALL_BYTES

    def _refused(self) -> int:
        self.words[Header.HEAP_REFUSED] += 1
        return 0

    def operation(
        self,
        kind: int,
        group: int,
        seq: int,
        call: int,
        site: int,
        peer: int,
        tag: int,
        thread: int,
        bucket: int,
        entered: int,
    ) -> int:
        """Record that an operation is entered; returns its serial number."""
        serial = next(self._serial)
        number = next(self._operations)
        self._pack(
            self._map,
            HEADER_BYTES + serial % self.slots * RECORD_BYTES,
            serial,
            kind,
            group,
            seq,
            call,
            site,
            peer,
            tag,
            thread,
            entered,
            0,
            0,
            bucket,
            number,
            0,
            serial,
        )
        words = self.words
        words[Header.RECORDS] = serial
        words[Header.OPERATIONS] = number
        return serial

    def mark(self, kind: int, *, name: int = 0, value: int | None = None, site: int = 0, thread: int = 0, seq: int = 0) -> int:
        """Record a mark; ``name`` and ``site`` are heap numbers.  Returns its serial number."""
        serial = next(self._serial)
        words = self.words
        self._pack(
            self._map,
            HEADER_BYTES + serial % self.slots * RECORD_BYTES,
            serial,
            kind,
            0,
            seq,
            name,
            site,
            0,
            0,
            thread,
            _now(),
            0,
            0,
            0,
            words[Header.OPERATIONS],
            0 if value is None else value + 1,
            serial,
        )
        words[Header.RECORDS] = serial
        return serial

    def left(self, serial: int) -> None:
        """Record that the operation or mark has come back."""
        word = _RING_WORD + serial % self.slots * RECORD_WORDS
        if self.words[word] == serial:
            self.words[word + Field.RETURNED] = _now()

    def awaited(self, serial: int) -> None:
        """Record that its rank waits in it: whatever it was called as, the rank goes on when it is over."""
        word = _RING_WORD + serial % self.slots * RECORD_WORDS
        if self.words[word] == serial:
            self.words[word + Field.TYPE] |= Flag.AWAITED

    def completed(self, serial: int, failed: bool = False) -> None:
        """Record that the communication is over."""
        word = _RING_WORD + serial % self.slots * RECORD_WORDS
        if self.words[word] == serial:
            self.words[word + Field.COMPLETED] = -_now() if failed else _now()

    def completion_unknown(self, serial: int) -> None:
        """Take back that the completion of an operation would be seen: a missing one proves nothing any more."""
        word = _RING_WORD + serial % self.slots * RECORD_WORDS
        if self.words[word] == serial:
            self.words[word + Field.TYPE] &= ~Flag.COMPLETION_KNOWN

    def count(self, header_word: int) -> int:
        """Add one to a counter of progress and return it."""
        value = self.words[header_word] + 1
        self.words[header_word] = value
        return value

    def pass_ended(self, batches: int) -> None:
        """Record that a pass over a loader has ended after so many batches."""
        words = self.words
        passes = words[Header.PASSES]
        words[Header.PASS_RING + passes % Header.PASS_RING_WORDS] = batches
        words[Header.PASSES] = passes + 1
        words[Header.EXHAUSTED] = 1

    def exiting(self, code: int | None) -> None:
        """Record that the process says that it ends, and with which status if that is known."""
        if code is not None:
            self.words[Header.EXIT_CODE] = code + 1000
        if not self.words[Header.EXIT_TIME]:
            self.words[Header.EXIT_TIME] = _now()

    def main_over(self) -> None:
        """Record that the main thread has left the program: the interpreter begins to end."""
        self.words[Header.MAIN_OVER] = _now()

    @property
    def progress(self) -> tuple[int, ...]:
        """Operations, batches, forwards, backwards and steps so far."""
        return self.words[Header.OPERATIONS], *self.words[Header.BATCHES : Header.STEPS + 1]

    def note(self, text: str) -> None:
        """Say once what could not be recorded."""
        self.intern("note", text[:500], key=text[:500])

    def detach(self) -> None:
        """Write into memory of this process alone from now on: for a forked child, which shares the file with its parent.

        Code of the child that still holds this writer goes on unharmed; another thread of the parent may have held the lock.
        """
        self._lock = threading.RLock()
        self._appending = False
        self._map = mmap.mmap(-1, file_bytes(self.slots, self._heap_bytes))
        self.words = memoryview(self._map).cast("q")


def _encoded(kind: str, payload: Any) -> bytes:
    return json.dumps([kind, payload], separators=(",", ":")).encode("utf-8", "backslashreplace")


def _process_start() -> int:
    """Start time of this process in clock ticks since boot (proc(5), /proc/pid/stat field 22); tells a reused pid apart."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
