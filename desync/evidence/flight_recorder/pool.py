"""Reads many dumps in a few processes of their own, and gives each answer back with the dump's place in the list."""

from __future__ import annotations

import json
import marshal
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from desync.evidence.flight_recorder import worker
from desync.evidence.flight_recorder.columns import RawDump

MAX_WORKERS = 8
LIMIT_S = 600.0
"""Wall time for one dump: a worker that waits for a dead file system is ended."""
MAX_ANSWER = 4 << 30
GONE = "reading it takes more time or memory than a dump of its size can need"


@dataclass(frozen=True, slots=True)
class Unread:
    """A dump that could not be read, and why; the reason stands after the file's name."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A dump to read: the file, or (out of an archive or compressed) a function that gives its bytes.

    The function may raise OSError or ValueError.
    """

    path: Path | None
    content: Callable[[], bytes] | None = None


def read_all(wanted: Sequence[Wanted]) -> list[RawDump | Unread]:
    """Every dump, in the order asked for."""
    results: list[RawDump | Unread] = [Unread("it was not read")] * len(wanted)
    tasks: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(wanted)):
        tasks.put(number)
    workers = max(1, min(MAX_WORKERS, os.cpu_count() or 1, (len(wanted) + 7) // 8))
    with ThreadPoolExecutor(workers) as threads:
        for done in [threads.submit(_serve, tasks, wanted, results) for _ in range(workers)]:
            done.result()
    return results


def _serve(tasks: queue.SimpleQueue[int], wanted: Sequence[Wanted], results: list[RawDump | Unread]) -> None:
    """Take tasks until none is left; a worker that dies over one is replaced for the next."""
    reader = Reader()
    try:
        for number in _taken(tasks):
            results[number] = reader.read(wanted[number])
    finally:
        reader.close()


def _taken(tasks: queue.SimpleQueue[int]) -> Iterator[int]:
    while True:
        try:
            yield tasks.get_nowait()
        except queue.Empty:
            return


class Reader:
    """One worker process, started when it is needed and again after a dump has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, wanted: Wanted) -> RawDump | Unread:
        """One dump."""
        try:
            data = wanted.content() if wanted.content is not None else None
        except (OSError, ValueError) as error:
            return Unread(getattr(error, "strerror", None) or str(error) or "it cannot be read")
        process = self._running()
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        try:
            return self._ask(process, wanted.path, data)
        except (OSError, EOFError):
            self.close()
            return Unread(GONE)
        finally:
            timer.cancel()

    def _ask(self, process: subprocess.Popen[bytes], path: Path | None, data: bytes | None) -> RawDump | Unread:
        requests, answers = process.stdin, process.stdout
        assert requests is not None  # noqa: S101 - a pipe was asked for
        assert answers is not None  # noqa: S101 - likewise
        request = {"path": os.fspath(path)} if data is None and path is not None else {"size": len(data or b"")}
        requests.write(json.dumps(request).encode() + b"\n")
        requests.write(data or b"")
        requests.flush()
        kind = _exactly(answers, 1)
        content = _exactly(answers, int.from_bytes(_exactly(answers, 8), "big"))
        if kind == b"O":
            return RawDump(*marshal.loads(content))  # noqa: S302 - made by our own worker, of numbers and strings
        return Unread(content.decode("utf-8", "replace"))

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # Isolated (-I): neither the working directory nor the environment can slip other modules under it.
            command = [sys.executable, "-I", os.fspath(worker.__file__)]
            self._process = subprocess.Popen(  # noqa: S603 - this Python, with a file of desync's own
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process

    def close(self) -> None:
        """End the worker."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.communicate()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    if size > MAX_ANSWER:
        raise EOFError
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
