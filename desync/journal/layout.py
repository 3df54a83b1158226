"""The bytes of a journal: the only place that knows them.

A journal is one file of fixed size that a rank maps into its memory, so that whatever ends the process, what it wrote stays in
the page cache and can be read from outside.  It has three parts::

    header   4096 bytes: who wrote it, counters of progress, how far the other parts are filled
    ring     ``slots`` records of 128 bytes; the oldest are overwritten
    heap     what records refer to by number (call sites, signatures, groups, exceptions), append-only JSON

All numbers are native-endian signed 64-bit words: a single aligned word is written in one piece by the hardware, which lets
another process read while the rank writes.  Readers on a machine of the other endianness see a wrong magic number and refuse.

A record is written by one ``pack_into`` from its first word to its last; the first and the last word hold its serial number.
A reader that finds them different has met a record that was not finished (killed in the middle, or being written right now).
"""

from __future__ import annotations

import struct

MAGIC = 0x316E79736564_0A01  # "\x01\ndesyn1" in little-endian order
VERSION = 1

HEADER_BYTES = 4096
WORD = 8
RECORD_WORDS = 16
RECORD_BYTES = RECORD_WORDS * WORD
RECORD = struct.Struct("@16q")

DEFAULT_SLOTS = 16384
MAX_SLOTS = 1 << 22
DEFAULT_HEAP_BYTES = 4 * 1024 * 1024
ENTRY_HEAD = struct.Struct("@qq")
"""Before each entry of the heap: its length in bytes (0 while it is not complete) and the CRC-32 of its bytes."""
MAX_ENTRY_BYTES = 1 << 20


class Header:
    """Word offsets in the header."""

    MAGIC = 0
    VERSION = 1
    PID = 2
    RANK = 3  # rank + 1; 0 while it is not known
    WORLD_SIZE = 4  # 0 while it is not known
    ATTEMPT = 5
    SLOTS = 6
    HEAP_BYTES = 7
    START_WALL = 8
    START_MONOTONIC = 9
    RECORDS = 10  # serial of the newest record
    HEAP_USED = 11
    HEAP_ENTRIES = 12
    HEAP_REFUSED = 13  # entries that found no room
    OPERATIONS = 14
    BATCHES = 15
    FORWARDS = 16
    BACKWARDS = 17
    STEPS = 18
    EXHAUSTED = 19  # 1 while the last pass over a loader has ended and none has begun
    EXIT_TIME = 20  # monotonic; 0 while the process has not said that it ends
    EXIT_CODE = 21  # status + 1000; 0 while it is not known
    PASSES = 22  # how many passes over a loader have ended
    PROCESS_START = 23  # start time of the process in clock ticks since boot, /proc/<pid>/stat field 22
    MAIN_OVER = 24  # monotonic: when the main thread's program was over; 0 while it runs
    ANCESTOR = 25  # process number of an ancestor that had claimed a rank before; 0: none
    PASS_RING = 64  # 64 words: batches of the last 64 finished passes
    PASS_RING_WORDS = 64


class Field:
    """Word offsets in a record."""

    SERIAL = 0
    TYPE = 1  # of RecordType, in the low byte; flags above it
    GROUP = 2  # heap number; 0: none
    SEQ = 3
    CALL = 4  # heap number of the signature (operation) or of the name and value (mark)
    SITE = 5  # heap number; 0: not known
    PEER = 6  # root, or the other side of a p2p operation, as a global rank + 1; 0: none
    TAG = 7
    THREAD = 8
    ENTERED = 9  # monotonic
    RETURNED = 10
    COMPLETED = 11  # negative: it failed
    BUCKET = 12  # heap number; 0: no bucket of DDP
    AFTER = 13  # operations entered before
    VALUE = 14  # a mark's number + 1; 0: none
    CHECK = 15  # the serial again


class RecordType:
    """What a record is."""

    OPERATION = 1
    FETCH = 2
    EXHAUSTED = 3
    FORWARD = 4
    BACKWARD = 5
    STEP = 6
    EXCEPTION = 7
    EXIT = 8
    USER = 9


class Flag:
    """Bits of the type word above its low byte."""

    ASYNC = 1 << 8
    COMPLETION_KNOWN = 1 << 9
    HAS_TAG = 1 << 10
    SYNC = 1 << 11  # a forward whose backward synchronises
    AWAITED = 1 << 12  # somebody waits, or has waited, on the operation's handle


def heap_offset(slots: int) -> int:
    """Byte at which the heap begins."""
    return HEADER_BYTES + slots * RECORD_BYTES


def file_bytes(slots: int, heap_bytes: int) -> int:
    """Size of the whole file."""
    return heap_offset(slots) + heap_bytes
