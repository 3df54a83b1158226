"""A journal is foreign input: whatever its bytes are, reading it ends, and only ``JournalError`` comes out."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from desync.errors import JournalError
from desync.journal.layout import HEADER_BYTES, MAGIC, RECORD_WORDS, Header, RecordType, heap_offset
from desync.journal.reader import JournalReader
from desync.model import Trace
from tests.unit.journal.journals import enter, new_writer, rich

KINDS = ["call", "site", "group", "failure", "ddp", "sampler", "label", "text", "note", "info", "unheard of"]
NAMES = ["op", "kind", "in", "name", "ranks", "frames", "parameters", "buckets"]
WORDS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-5, 40), st.just((1 << 63) - 1), st.just(-(1 << 63)))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(float("inf"))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=3)), inner),
    ),
    max_leaves=12,
)

quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "j"
    rich(path)
    return path.read_bytes()


def read_all(path: Path, data: bytes) -> Trace | None:
    """Everything that a watcher asks of a journal."""
    path.write_bytes(data)
    reader = JournalReader(str(path))
    try:
        reader.pulse()
        reader.newest_operation()
        reader.info()
        trace = reader.trace()
        if trace is not None:
            for row in trace.operations.rows(trace.rank):
                assert isinstance(row.call.op, str)
            repr(trace)
        return trace
    finally:
        reader.close()


def test_the_sound_one_can_be_read(sound: bytes, tmp_path: Path) -> None:
    trace = read_all(tmp_path / "j", sound)
    assert trace is not None
    assert len(trace.operations) == 4


@quick
@given(changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=40))
def test_any_bytes_may_be_changed(sound: bytes, tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(sound)
    for position, value in changes:
        data[position % len(data)] = value
    _refused_or_read(tmp_path, bytes(data))


@quick
@given(words=st.dictionaries(st.integers(1, 100), WORDS, min_size=1, max_size=6))
def test_any_word_of_the_header_may_be_anything(sound: bytes, tmp_path: Path, words: dict[int, int]) -> None:
    data = bytearray(sound)
    for word, value in words.items():
        struct.pack_into("@q", data, word * 8, value)
    _refused_or_read(tmp_path, bytes(data))


@quick
@given(
    newest=st.one_of(st.integers(0, 100), WORDS),
    kinds=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    values=st.lists(WORDS, min_size=RECORD_WORDS, max_size=RECORD_WORDS),
)
def test_records_that_look_sound_may_hold_anything(
    sound: bytes, tmp_path: Path, newest: int, kinds: list[int], values: list[int]
) -> None:
    data = bytearray(sound)
    struct.pack_into("@q", data, Header.RECORDS * 8, newest)
    for distance, kind in enumerate(kinds):
        serial = newest - distance
        if not 0 < serial < (1 << 63):
            continue
        record = [serial, kind, *values[2:-1], serial]
        struct.pack_into("@16q", data, HEADER_BYTES + serial % 32 * 128, *record)
    _refused_or_read(tmp_path, bytes(data))


@quick
@given(entries=st.lists(st.tuples(st.sampled_from(KINDS), JSON), min_size=1, max_size=5))
def test_entries_of_the_heap_may_be_any_json(tmp_path: Path, entries: list[tuple[str, object]]) -> None:
    path = tmp_path / "j"
    path.unlink(missing_ok=True)
    writer = new_writer(path, slots=64, heap_bytes=1 << 16)
    numbers = [writer.intern(kind, payload) for kind, payload in entries]
    for number in numbers:
        enter(writer, call_number=number)
        writer.operation(RecordType.OPERATION, number, 1, number, number, 1, 1, 1, number, 1)
        writer.mark(RecordType.USER, name=number, site=number)
    data = path.read_bytes()
    assert read_all(tmp_path / "copy", data) is not None


def test_an_entry_as_deep_as_json_allows_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = new_writer(path, slots=8, heap_bytes=1 << 18)
    payload: object = 1
    for _ in range(900):
        payload = [payload]
    for kind in KINDS:
        writer.intern(kind, payload)
    assert read_all(tmp_path / "copy", path.read_bytes()) is not None


@quick
@given(length=st.integers(0, 1 << 15))
def test_a_part_of_a_journal_is_none(sound: bytes, tmp_path: Path, length: int) -> None:
    with pytest.raises(JournalError):
        read_all(tmp_path / "j", sound[: min(length, len(sound) - 1)])


@quick
@given(data=st.binary(max_size=200))
def test_any_file_is_none(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(JournalError, match="give a journal that desync wrote"):
        read_all(tmp_path / "j", data)


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(JournalError):
            JournalReader(str(path))


def test_a_fifo_does_not_hold_the_reader_up(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "j")
    with pytest.raises(JournalError):
        JournalReader(str(tmp_path / "j"))


def test_a_journal_of_another_version_says_so(sound: bytes, tmp_path: Path) -> None:
    data = bytearray(sound)
    struct.pack_into("@q", data, Header.VERSION * 8, 99)
    with pytest.raises(JournalError, match="version 99"):
        read_all(tmp_path / "j", bytes(data))
    struct.pack_into("@q", data, Header.MAGIC * 8, MAGIC ^ 1)
    with pytest.raises(JournalError, match="does not begin"):
        read_all(tmp_path / "j", bytes(data))


def test_one_damaged_entry_costs_no_other(sound: bytes, tmp_path: Path) -> None:
    data = bytearray(sound)
    at = data.index(b'["ValueError"') if b'["ValueError"' in data else data.index(b"ValueError", heap_offset(32))
    data[at] ^= 1
    trace = read_all(tmp_path / "j", bytes(data))
    assert trace is not None
    assert trace.marks[-1].failure is None
    assert [row.call.op for row in trace.operations.rows(3)] == ["all_reduce", "all_reduce", "send", "all_reduce"]
    assert trace.ddp[0].name == "Net"
    assert any("damaged" in note for note in trace.notes)


def _refused_or_read(folder: Path, data: bytes) -> None:
    try:
        read_all(folder / "j", data)
    except JournalError as error:
        assert error.remedy  # noqa: PT017 - both outcomes are right
