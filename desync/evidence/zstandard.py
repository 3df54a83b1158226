"""Zstandard, where this Python (3.14) or an installed package can read it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, BinaryIO


class NoZstandardError(Exception):
    """Nothing here can read zstd; the message says what would."""

    def __init__(self) -> None:
        super().__init__("nothing here reads zstd; pip install zstandard, or unpack it (zstd -d) first")


def zstandard_reader() -> Callable[[BinaryIO], Any]:
    """What makes a stream of the content out of a compressed one.  Raises NoZstandardError."""
    try:
        zstd = importlib.import_module("compression.zstd")
    except ImportError:
        return _of_package()
    return lambda packed: _Errors(zstd.ZstdFile(packed), zstd.ZstdError)


def _of_package() -> Callable[[BinaryIO], Any]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise NoZstandardError from None

    def reader(packed: BinaryIO) -> _Errors:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        return _Errors(decompressor.stream_reader(packed, read_across_frames=True), zstandard.ZstdError)

    return reader


class _Errors:
    """A stream whose own kind of error becomes OSError."""

    def __init__(self, stream: Any, error: type[Exception]) -> None:
        self._stream, self._error = stream, error

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes."""
        try:
            data: bytes = self._stream.read(size)
        except self._error as error:
            raise OSError(None, "the zstd data is damaged") from error
        return data

    def close(self) -> None:
        """Close it."""
        self._stream.close()
