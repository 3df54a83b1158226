"""Zstandard, where this Python (3.14) or an installed package can read it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import BinaryIO, cast


class NoZstandardError(Exception):
    """Nothing here can read zstd; the message says what would."""

    def __init__(self) -> None:
        super().__init__("nothing here reads zstd; pip install zstandard, or unpack it (zstd -d) first")


def open_zstandard(opener: Callable[[], BinaryIO]) -> Callable[[], BinaryIO]:
    """How to open a compressed file.  Raises NoZstandardError."""
    try:
        zstd = importlib.import_module("compression.zstd")
        return lambda: cast("BinaryIO", zstd.ZstdFile(opener()))
    except ImportError:
        pass
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise NoZstandardError from None

    def opened() -> BinaryIO:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        return cast("BinaryIO", _Errors(decompressor.stream_reader(opener(), read_across_frames=True), zstandard.ZstdError))

    return opened


class _Errors:
    """A stream whose own kind of error becomes OSError."""

    def __init__(self, stream: BinaryIO, error: type[Exception]) -> None:
        self._stream, self._error = stream, error

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except self._error as error:
            raise OSError(None, "the zstd data is damaged") from error

    def __enter__(self) -> _Errors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
