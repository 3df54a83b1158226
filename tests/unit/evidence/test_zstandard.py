from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from desync.evidence.sources import find
from desync.evidence.zstandard import NoZstandardError, zstandard_reader

LOG = b"[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 'x'\n"


def compress(content: bytes) -> bytes:
    """By whatever is installed; the tests are skipped where nothing is."""
    try:
        from compression.zstd import compress as made  # type: ignore[import-not-found]  # Python 3.14
    except ImportError:
        made = pytest.importorskip("zstandard").compress
    packed: bytes = made(content)
    return packed


def test_files_and_archives_are_read_and_a_damaged_one_costs_only_itself(tmp_path: Path) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        member = tarfile.TarInfo("rank1.log")
        member.size = len(LOG)
        archive.addfile(member, io.BytesIO(LOG))
    (tmp_path / "all.tar.zst").write_bytes(compress(plain.getvalue()))
    (tmp_path / "rank0.log.zst").write_bytes(compress(LOG) + compress(LOG))  # two frames, as `zstd` appends them
    (tmp_path / "cut.log.zst").write_bytes(compress(LOG)[:7])
    found = find([str(tmp_path)])
    assert sorted(source.content() for source in found.found) == [LOG, LOG + LOG]
    assert any("cut.log.zst" in note for note in found.notes)
    found.close()


def test_damage_is_an_oserror_like_that_of_other_files() -> None:
    compress(LOG)  # skips where nothing reads zstd
    stream = zstandard_reader()(io.BytesIO(b"\x28\xb5\x2f\xfd" + b"\xff" * 400))
    with pytest.raises(OSError, match="the zstd data is damaged"):
        stream.read(100)
    stream.close()


def test_without_any_reader_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        raise ImportError

    monkeypatch.setattr("desync.evidence.zstandard.importlib.import_module", nothing)
    with pytest.raises(NoZstandardError, match="pip install zstandard"):
        zstandard_reader()
