"""What lies at the paths that a person names: files, folders, patterns and archives, each recognised by what it holds.

Nothing is unpacked to disk; members of archives are read where they are, within bounds.  Names and contents are foreign: a
folder that leads back into itself, a pipe, a device, a file without end are skipped with a note.
"""

from __future__ import annotations

import bz2
import codecs
import enum
import glob
import gzip
import io
import lzma
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from desync.errors import EvidenceError
from desync.evidence.zstandard import NoZstandardError, zstandard_reader

MAX_FILES = 20_000
MAX_DEPTH = 24
MAX_NOTES = 40
HEAD = 64 << 10
MAX_MEMBER = 1 << 30
"""A longer member of an archive (or content of a compressed file) is cut there for dumps, and streamed for logs."""
BASE_UNPACKED, MAX_RATIO = 1 << 30, 100
"""What is compressed is read up to this many bytes, and this many times its size."""
BAD_STREAM = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError)
"""What reading a broken archive can raise."""


TEXT_PICKLE = re.compile(rb"(?:\(dp?\d*\n|\(lp?\d*\n|c[A-Za-z_][\w.]{0,100}\n[A-Za-z_]\w{0,100}\n(?:p\d|\())")
"""Beginning of a pickle of protocol 0, which is text: a dictionary, a list, or the name of something to be loaded."""


class Type(enum.Enum):
    """What a file holds."""

    DUMP = "flight-recorder dump"
    LOG = "log"
    RAS = "ncclras answer"
    STACKS = "py-spy dump"


@dataclass(frozen=True, slots=True)
class Source:
    """One file, or one member of an archive."""

    name: str
    """As a person would write it: the path, with an archive's member behind "!"."""
    type: Type
    path: Path | None
    """Where it lies as it is; None within an archive or if it is compressed."""
    head: bytes
    """Its first bytes."""
    modified: float | None
    _open: Callable[[], BinaryIO]

    def open(self) -> BinaryIO:
        """A stream of the content.  Raises OSError, EOFError or ValueError, also while it is read."""
        return self._open()

    def content(self) -> bytes:
        """All of it, up to MAX_MEMBER bytes and one more.  Raises OSError or ValueError."""
        try:
            with self.open() as stream:
                return stream.read(MAX_MEMBER + 1)
        except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
            raise ValueError("the archive is damaged") from error


@dataclass(frozen=True, slots=True)
class Sources:
    """All that was found, and what was passed over."""

    found: tuple[Source, ...]
    run_directories: tuple[Path, ...]
    """Folders with the journals of `desync watch`."""
    notes: tuple[str, ...]
    archives: tuple[BinaryIO, ...] = ()
    """Open files in which members lie."""

    def close(self) -> None:
        """Let go of the archives; their members can no longer be opened."""
        for file in self.archives:
            file.close()


def find(names: list[str]) -> Sources:
    """Look at every path.  Raises EvidenceError for one that does not exist."""
    finder = _Finder()
    for name in names:
        for path in _expanded(name):
            finder.look(path, explicit=True)
    if not (finder.found or finder.runs or finder.notes):
        finder.note(", ".join(names), "it holds no file")
    return Sources(tuple(finder.found), tuple(finder.runs), tuple(finder.notes[:MAX_NOTES]), tuple(finder.archives))


def _expanded(name: str) -> list[Path]:
    if os.path.lexists(name):
        return [Path(name)]
    matches = sorted(glob.glob(name, recursive=True))[: MAX_FILES + 1] if glob.has_magic(name) else []
    if not matches:
        raise EvidenceError(f"there is no {name!r}", "name dumps, logs, folders or archives of the job")
    return [Path(match) for match in matches]


class _Finder:
    def __init__(self) -> None:
        self.found: list[Source] = []
        self.runs: list[Path] = []
        self.notes: list[str] = []
        self.archives: list[BinaryIO] = []
        self._seen: set[tuple[int, int]] = set()

    def note(self, path: object, why: str) -> None:
        """Say that something was passed over."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(f"{str(path)!r} was passed over: {why}")

    def look(self, path: Path, *, explicit: bool, depth: int = 0) -> None:
        """Look at a path, and at everything below it."""
        try:
            status = path.stat()
        except OSError as error:
            self.note(path, error.strerror or "it cannot be read")
            return
        if (status.st_dev, status.st_ino) in self._seen:
            return
        self._seen.add((status.st_dev, status.st_ino))
        if stat.S_ISDIR(status.st_mode):
            self._folder(path, depth)
        elif stat.S_ISREG(status.st_mode):
            self._file(path, status)
        elif explicit:
            self.note(path, "it is neither a file nor a folder")

    def _folder(self, path: Path, depth: int) -> None:
        if (path / "journals").is_dir() or any(path.glob("a*.journal")):
            self.runs.append(path)
            return
        if depth >= MAX_DEPTH:
            self.note(path, "it is too deep")
            return
        try:
            names = sorted(os.listdir(path))
        except OSError as error:
            self.note(path, error.strerror or "it cannot be read")
            return
        for name in names:
            if len(self.found) >= MAX_FILES:
                self.note(path, f"there are more than {MAX_FILES} files")
                return
            self.look(path / name, explicit=False, depth=depth + 1)

    def _file(self, path: Path, status: os.stat_result) -> None:
        if status.st_size == 0:
            self.note(path, "it is empty")
            return
        looked = self._looked_into(str(path), _plain(path), status.st_size)
        if looked is None:
            return
        content, head, packed = looked
        if head[257:262] == b"ustar":
            self._archive(path, content, spool=packed)
        else:
            self._add(str(path), content, head, None if packed else path, status.st_mtime)

    def _looked_into(
        self, name: str, opener: Callable[[], BinaryIO], size: int
    ) -> tuple[Callable[[], BinaryIO], bytes, bool] | None:
        """How to open the content of a file or member, its beginning, and whether it is compressed; None with a note."""
        try:
            unpack = _unpacker(opener, size)
            content = unpack or opener
            with content() as stream:
                head = stream.read(HEAD)
        except NoZstandardError as error:
            self.note(name, str(error))
        except BAD_STREAM as error:
            self.note(name, getattr(error, "strerror", None) or f"it is damaged ({type(error).__name__})")
        else:
            return content, head, unpack is not None
        return None

    def _archive(self, path: Path, content: Callable[[], BinaryIO], *, spool: bool) -> None:
        """The members of an archive, to be read where they lie; a compressed one is unpacked into a nameless file first."""
        try:
            file = _spooled(content) if spool else content()
            self.archives.append(file)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for count, member in enumerate(archive):
                    if count >= MAX_FILES:
                        self.note(path, f"it has more than {MAX_FILES} members")
                        break
                    self._member(f"{path}!{member.name}", file, member)
        except BAD_STREAM as error:
            self.note(path, f"the archive is damaged ({type(error).__name__})")

    def _member(self, name: str, file: BinaryIO, member: tarfile.TarInfo) -> None:
        if member.issparse():
            self.note(name, "it is stored with holes (tar --sparse); unpack the archive first")
        elif member.isreg() and member.size:
            looked = self._looked_into(name, _range(file, member.offset_data, member.size), member.size)
            if looked is not None:
                content, head, _ = looked
                self._add(name, content, head, None, float(member.mtime))

    def _add(self, name: str, opener: Callable[[], BinaryIO], head: bytes, path: Path | None, modified: float) -> None:
        if head[:2] in _UTF16:
            opener, path = _recoded(opener), None
            head = head[: len(head) // 2 * 2].decode("utf-16", "replace").encode("utf-8", "replace")
        kind = recognise(head)
        if kind is None:
            zipped = "it is a zip archive; unpack it first"
            self.note(name, zipped if head[:4] == b"PK\x03\x04" else "it is none of the kinds of file that are known")
            return
        self.found.append(Source(name, kind, path, head, modified, opener))


def _plain(path: Path) -> Callable[[], BinaryIO]:
    def opened() -> BinaryIO:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return open(handle, "rb")

    return opened


_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What PowerShell puts in front of what is redirected into a file."""


def _recoded(opener: Callable[[], BinaryIO]) -> Callable[[], BinaryIO]:
    """The same text in UTF-8, which everything here reads."""
    return lambda: cast("BinaryIO", io.BufferedReader(_Recoded(opener()), 1 << 16))


class _Recoded(io.RawIOBase):
    """A stream of UTF-16 as UTF-8; what is no character becomes a replacement."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the next characters."""
        while not self._ready:
            data = self._stream.read(1 << 16)
            self._ready = self._decoder.decode(data, final=not data).encode("utf-8", "replace")
            if not data:
                break
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def readable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Close the stream below, too."""
        if not self.closed:
            self._stream.close()
        super().close()


def _unpacker(opener: Callable[[], BinaryIO], size: int) -> Callable[[], BinaryIO] | None:
    """How to open what is compressed; None for what is not.  Raises NoZstandardError."""
    with opener() as stream:
        magic = stream.read(6)
    unpack = _decompressor(magic)
    if unpack is None:
        return None

    def opened() -> BinaryIO:
        packed = opener()
        return cast("BinaryIO", _Unpacked(unpack(packed), packed, BASE_UNPACKED + MAX_RATIO * size))

    return opened


def _decompressor(magic: bytes) -> Callable[[BinaryIO], Any] | None:
    if magic[:2] == b"\x1f\x8b":
        return lambda packed: gzip.GzipFile(fileobj=packed)
    if magic[:3] == b"BZh":
        return bz2.BZ2File
    if magic[:6] == b"\xfd7zXZ\x00":
        return lzma.LZMAFile
    return zstandard_reader() if magic[:4] == b"\x28\xb5\x2f\xfd" else None


class _Unpacked(io.BufferedIOBase):
    """A decompressed stream that ends at a limit: a few kilobytes can be made to unpack to terabytes."""

    def __init__(self, stream: IO[bytes], packed: BinaryIO, limit: int) -> None:
        self._stream, self._packed, self._left = stream, packed, limit

    def read(self, size: int | None = -1, /) -> bytes:
        """At most ``size`` bytes; a damaged end reads as the end, so that what comes before it counts."""
        wanted = self._left if size is None or size < 0 else min(size, self._left)
        try:
            data = self._stream.read(wanted)
        except (EOFError, zlib.error, lzma.LZMAError):
            data = b""
        self._left -= len(data)
        return data

    def readable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Close the stream below, too."""
        if not self.closed:
            self._stream.close()
            self._packed.close()
        super().close()


def _spooled(content: Callable[[], BinaryIO]) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the sources in it
    try:
        with content() as stream:
            shutil.copyfileobj(stream, file, 4 << 20)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return cast("BinaryIO", file)


def _range(file: BinaryIO, start: int, size: int) -> Callable[[], BinaryIO]:
    return lambda: cast("BinaryIO", io.BufferedReader(_Range(file, start, size), 1 << 20))


class _Range(io.RawIOBase):
    """A part of a file, read without moving the file's own position."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._place, self._end = file, start, start + size

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the part's next bytes."""
        data = os.pread(self._file.fileno(), min(len(buffer), self._end - self._place), self._place)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def readable(self) -> bool:
        """It is."""
        return True


def recognise(head: bytes) -> Type | None:
    """What a file is, by its first bytes; None for what is known to be nothing of use."""
    start = head.lstrip()[:1]
    if (head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")) or TEXT_PICKLE.match(head):
        return Type.DUMP
    if start in (b"{", b"[") and (kind := _json_type(head)) is not None:
        return kind
    if b"Process " in head[:4096] and b"Python v" in head[:4096] and b"Thread " in head:
        return Type.STACKS
    return Type.LOG if _is_text(head) else None


def _json_type(head: bytes) -> Type | None:
    if b'"communicators"' in head or (b'"nccl_version"' in head and b'"cuda_driver_version"' in head):
        return Type.RAS
    if b'"entries"' in head or b'"pg_config"' in head or b'"pg_status"' in head:
        return Type.DUMP
    if b'"thread_name"' in head or (b'"frames"' in head and b'"os_thread_id"' in head):
        return Type.STACKS
    return None


def _is_text(head: bytes) -> bool:
    """Logs hold bytes of any encoding and colours, but hardly any other control characters."""
    strange = sum(head[:4096].count(byte) for byte in range(32) if byte not in (7, 8, 9, 10, 12, 13, 27))
    return bool(head) and strange <= len(head[:4096]) // 100
