"""Reading a foreign pickle or JSON text without doing anything that it asks for.

A pickle is a program.  Here it may build numbers, strings, lists, tuples and dicts and nothing else: whatever names a function
or a class is refused.  What is left to a hostile one is to use up time and memory; that is why this runs in a process with
limits on both (:mod:`desync.evidence.flight_recorder.worker`).
"""

from __future__ import annotations

import io
import json
import pickle
from typing import Any, NoReturn

MAX_BYTES = 1 << 30
"""A longer dump is not read: a ring of 100,000 entries with stacks has about a tenth of this."""

TEXT = "it is no flight-recorder dump"


class RefusedError(Exception):
    """The bytes are no dump that can be read; the message says why, to stand after the file's name."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedError(f"it asks for the Python object {module[:60]}.{name[:60]} to be loaded, which no dump does")

    def persistent_load(self, _pid: Any) -> NoReturn:
        raise RefusedError("it refers to objects outside of the file, which no dump does")


def loads(data: bytes) -> Any:
    """What the bytes hold.  Raises RefusedError, and MemoryError where the process has a limit."""
    if len(data) > MAX_BYTES:
        raise RefusedError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return _json(data) if data.lstrip()[:1] in (b"{", b"[") else _pickle(data)


def _pickle(data: bytes) -> Any:
    # A protocol from 2 on starts with its number; of what starts otherwise only protocol 0 is looked at, which is text.
    if data[:1] not in (b"\x80", b"(", b"c"):
        raise RefusedError(TEXT)
    try:
        # A reader that can be peeked into spares the unpickler a call for every few bytes: four times faster.
        return _Unpickler(io.BufferedReader(io.BytesIO(data), len(data) + 1)).load()
    except (RefusedError, MemoryError):
        raise
    except EOFError:
        raise RefusedError("it ends in the middle of a record") from None
    except Exception as error:  # noqa: BLE001 - a broken pickle can raise anything
        if "truncated" in str(error):
            raise RefusedError("it ends in the middle of a record") from None
        raise RefusedError(f"{TEXT} ({type(error).__name__})") from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedError("it is no complete JSON text") from None
