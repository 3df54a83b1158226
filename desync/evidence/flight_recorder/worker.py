"""The process that reads dumps: it may use so much time and memory and no more, and does nothing but compute.

It is started as a script by :mod:`desync.evidence.flight_recorder.pool`.  Requests come on standard input: a line of JSON
(``{"path": …}``, or ``{"size": N}`` followed by N bytes).  Each answer is one letter (``O`` for columns, ``E`` for the reason
why there are none), the length in eight bytes, and the content.
"""

from __future__ import annotations

import gc
import json
import marshal
import os
import resource
import stat
import sys
from typing import Any, BinaryIO

BASE_MEMORY = 1 << 30
MEMORY_PER_BYTE = 40
"""An unpickled dump takes 5 to 15 times its size."""
BASE_CPU_S = 5
BYTES_PER_CPU_S = 2 << 20
"""Unpickling and sorting into columns runs at about 30 MB a second."""


def main() -> None:
    """Answer requests until standard input ends."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
    gc.disable()  # nothing that is read refers back to itself, unless it is hostile; then the limits end it
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while line := requests.readline():
        kind, content = _answer(json.loads(line), requests)
        answers.write(kind + len(content).to_bytes(8, "big"))
        answers.write(content)
        answers.flush()


def _answer(request: dict[str, Any], stream: BinaryIO) -> tuple[bytes, bytes]:
    from desync.evidence.flight_recorder.columns import from_dump
    from desync.evidence.flight_recorder.restricted import RefusedError, loads

    try:
        data = stream.read(request["size"]) if "size" in request else _read(request["path"])
        _limit(len(data))
        raw = loads(data)
        return b"O", marshal.dumps(tuple(from_dump(raw)))
    except RefusedError as error:
        return b"E", str(error).encode("utf-8", "replace")
    except OSError as error:
        return b"E", (error.strerror or "it cannot be read").encode("utf-8", "replace")
    except (MemoryError, RecursionError):
        return b"E", b"reading it would take more memory than a dump of its size can need"


def _read(path: str) -> bytes:
    from desync.evidence.flight_recorder.restricted import MAX_BYTES

    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(None, "it is no plain file")
        return file.read(min(found.st_size, MAX_BYTES) + 1)  # read() sets aside what it is asked for


def _limit(size: int) -> None:
    """Grant what a dump of this size can need; whoever exceeds the time is ended by the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + BASE_CPU_S + size // BYTES_PER_CPU_S
    _soft(resource.RLIMIT_CPU, seconds)
    _soft(resource.RLIMIT_AS, BASE_MEMORY + MEMORY_PER_BYTE * size)


def _soft(what: int, limit: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    main()
