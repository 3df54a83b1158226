from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest

from desync.errors import EvidenceError
from desync.evidence import sources
from desync.evidence.mixture import gather
from desync.evidence.sources import Type, find, recognise
from desync.evidence.zstandard import NoZstandardError

LOG = b"[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 'x'\n"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x80\x02}q\x00(X\x07\x00\x00\x00entries", Type.DUMP),
        (b'{\n  "entries": [],', Type.DUMP),
        (b'{"nccl_version": "2.28.9", "communicators": [', Type.RAS),
        (b'[{"pid": 1, "thread_name": "MainThread", "frames": []', Type.STACKS),
        (b'Process 7: python\nPython v3.11.7\n\nThread 7 (idle): "MainThread"\n', Type.STACKS),
        (b'{"log":"step 1\\n","stream":"stderr"}', Type.LOG),
        (b"\x1b[32mstep\x1b[0m 1\r\n", Type.LOG),
        ("Epoch 4:  40%|████▍     | 400/1000".encode(), Type.LOG),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00", None),
        (bytes(range(256)), None),
    ],
)
def test_files_are_recognised_by_what_they_hold(head: bytes, kind: Type | None) -> None:
    assert recognise(head) is kind


def test_what_cannot_be_read_is_passed_over_and_said(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(LOG)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "model.bin").write_bytes(bytes(range(256)))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(LOG)[:6])
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    os.mkfifo(tmp_path / "pipe")
    found = find([str(tmp_path)])
    assert [source.name for source in found.found] == [str(tmp_path / "train.log")]
    said = "\n".join(found.notes)
    for name in ("empty", "model.bin", "cut.gz", "self"):
        assert name in said
    assert "pipe" not in said  # nobody asked for it
    assert any("neither a file nor a folder" in note for note in find([str(tmp_path / "pipe")]).notes)


def test_a_file_named_twice_or_by_two_links_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(LOG)
    os.link(tmp_path / "a.log", tmp_path / "b.log")
    assert len(find([str(tmp_path / "a.log"), str(tmp_path), str(tmp_path / "*.log")]).found) == 1


def test_nothing_at_all_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="there is no"):
        find([str(tmp_path / "nothing*")])
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(EvidenceError, match=r"nothing there can be read: .*empty"):
        gather(find([str(tmp_path)]))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_read_and_a_damaged_end_costs_only_the_end(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    packed: bytes = pack(LOG + os.urandom(200_000))
    (tmp_path / "whole.log.x").write_bytes(packed)
    (tmp_path / "cut.log.x").write_bytes(packed[: len(packed) // 2])
    found = find([str(tmp_path)])
    for source in found.found:
        with source.open() as stream:
            assert stream.read(len(LOG)) == LOG
            stream.read()


def test_archives_give_their_members_and_damaged_ones_a_note(tmp_path: Path) -> None:
    for mode, name in (("w", "plain.tar"), ("w:gz", "packed.tgz"), ("w:xz", "packed.txz")):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]  # all three are modes
            member = tarfile.TarInfo("../../etc/node0/train.log")
            member.size = len(LOG)
            archive.addfile(member, io.BytesIO(LOG))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
        (tmp_path / name).write_bytes(packed.getvalue())
    (tmp_path / "broken.tar").write_bytes((tmp_path / "plain.tar").read_bytes()[:700])
    found = find([str(tmp_path)])
    assert [source.content() for source in found.found if "broken" not in source.name] == [LOG] * 3
    assert {path.name for path in tmp_path.iterdir()} == {"plain.tar", "packed.tgz", "packed.txz", "broken.tar"}
    found.close()


def test_what_unpacks_to_more_than_it_can_be_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BASE_UNPACKED", 1000)
    monkeypatch.setattr(sources, "MAX_RATIO", 2)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"step 1\n" * 1_000_000))
    (source,) = find([str(tmp_path)]).found
    assert len(source.content()) < 50_000


def test_zstd_needs_a_reader_and_the_note_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        raise ImportError

    monkeypatch.setattr("desync.evidence.zstandard.importlib.import_module", nothing)
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 40)
    (note,) = find([str(tmp_path)]).notes
    assert str(NoZstandardError()) in note


def test_a_folder_of_journals_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "journals").mkdir(parents=True)
    assert find([str(tmp_path)]).run_directories == (tmp_path / "run",)


def test_compressed_members_of_an_archive_are_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "node.tar", "w") as archive:
        packed = {"a/rank0.log.gz": gzip.compress(LOG), "a/rank1.log.xz": lzma.compress(LOG), "bad.gz": b"\x1f\x8b\x08"}
        for name, content in packed.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    found = find([str(tmp_path / "node.tar")])
    assert [(source.name.rpartition("!")[2], source.content()) for source in found.found] == [
        ("a/rank0.log.gz", LOG),
        ("a/rank1.log.xz", LOG),
    ]
    assert any("bad.gz" in note for note in found.notes)
    found.close()


def test_what_cannot_be_read_in_place_is_said_with_what_to_do(tmp_path: Path) -> None:
    holes = tarfile.TarInfo("holes.log")
    holes.type, holes.size = tarfile.GNUTYPE_SPARSE, 0
    with tarfile.open(tmp_path / "holes.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(holes)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as zipped:
        zipped.writestr("rank0.log", LOG)
    (tmp_path / "nothing").mkdir()
    found = find([str(tmp_path)])
    found.close()
    assert any("all.zip" in note and "unpack it first" in note for note in found.notes)
    assert any("holes.log" in note and "with holes" in note for note in found.notes)
    with pytest.raises(EvidenceError, match="it holds no file"):
        gather(find([str(tmp_path / "nothing")]))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (pickle.dumps({"entries": []}, protocol=0), Type.DUMP),
        (b"cposix\nsystem\n(S'true'\ntR.", Type.DUMP),
        (b"compiling\nlinking\ndone\n", Type.LOG),
        (b"(Worker pid=5) step 1\n", Type.LOG),
    ],
)
def test_pickles_that_are_text_are_told_from_logs(content: bytes, kind: Type) -> None:
    assert recognise(content) is kind


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_what_powershell_redirects_is_read_as_text(encoding: str, tmp_path: Path) -> None:
    text = "[rank1]: ValueError: größer als 3\n" * 5000
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    (tmp_path / "job.log").write_bytes(mark + text.encode(encoding) + b"\x00")
    (source,) = find([str(tmp_path)]).found
    assert source.type is Type.LOG
    with source.open() as stream:
        assert stream.read().decode().startswith(text)
