from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from desync.journal.layout import Field, Flag, Header, RecordType, file_bytes
from desync.journal.reader import JournalReader
from desync.journal.writer import JournalWriter
from desync.model import Exit, Failure, Frame, Group, Kind, MarkKind, Tensors
from tests.unit.journal.journals import SLOTS, call, enter, group, new_writer, read, rich, site


def test_all_that_is_written_is_read_again(tmp_path: Path) -> None:
    rich(tmp_path / "j")
    trace = read(tmp_path / "j")
    first, failed, sent, last = trace.operations.rows(trace.rank)
    assert (first.rank, first.group, first.seq, first.thread) == (3, "default_pg", 1, 4711)
    assert (first.call.op, first.call.kind, first.call.reduce_op) == ("all_reduce", Kind.COLLECTIVE, "sum")
    assert first.call.inputs == Tensors(((2, 3),), ("float32",))
    assert first.call.site is not None
    assert first.call.site.frames == (Frame("step", "/home/ada/train.py", 7), Frame("main", "/home/ada/train.py", 90))
    assert (first.returned is not None, first.completed, first.pending) == (True, None, True)
    assert (failed.failed, failed.pending, failed.completed is not None) == (True, False, True)
    assert (sent.call.kind, sent.call.peer, sent.call.root, sent.call.tag) == (Kind.P2P, 1, None, 0)
    assert (last.returned, last.pending, first.call is last.call) == (None, True, True)
    kinds = [MarkKind.FETCH, MarkKind.EXHAUSTED, MarkKind.FORWARD, MarkKind.BACKWARD, MarkKind.STEP]
    kinds += [MarkKind.EXCEPTION, MarkKind.EXIT, MarkKind.USER, MarkKind.EXCEPTION]
    assert [mark.kind for mark in trace.marks] == kinds
    assert [mark.value for mark in trace.marks][:3] == [RecordType.FETCH, RecordType.EXHAUSTED, "no_sync"]
    assert {mark.after for mark in trace.marks} == {4}
    assert trace.marks[-1].failure == Failure("ValueError", "no", (Frame("f", "g.py", 1),))
    assert trace.groups == {"default_pg": Group("default_pg", (0, 1, 2, 3), "default_pg", "gloo")}
    progress = trace.progress
    assert (progress.batches, progress.forwards, progress.backwards, progress.steps) == (1, 1, 1, 1)
    assert (progress.passes, progress.loader_exhausted) == ((5,), True)
    assert isinstance(trace.exit, Exit)
    assert (trace.exit.code, trace.exit.announced) == (3, True)
    assert (trace.ddp[0].parameters, trace.ddp[0].buckets, trace.ddp[0].static_graph) == (("w", "b"), ((1, 0),), False)
    assert (trace.pid, trace.node, trace.world_size, trace.dropped) == (os.getpid(), "here", 4, 0)
    assert trace.notes == ("something is missing",)


def test_the_file_is_whole_and_private_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "j"
    new_writer(path)
    stat = path.stat()
    assert (stat.st_mode & 0o777, stat.st_size) == (0o600, file_bytes(SLOTS, 4096))
    assert stat.st_blocks * 512 >= stat.st_size  # its room is reserved: a full disk cannot end the job later
    with pytest.raises(FileExistsError):
        new_writer(path)
    assert path.stat().st_size == stat.st_size


def test_no_file_is_left_where_its_room_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(OSError, match="No space"):
        new_writer(tmp_path / "j")
    assert list(tmp_path.iterdir()) == []


def test_equal_keys_are_one_entry_and_no_key_is_always_a_new_one(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    assert call(writer) == call(writer) != call(writer, "broadcast")
    assert writer.intern("text", "same") != writer.intern("text", "same")
    assert writer.intern("text", "a", key=1) != writer.intern("label", ["a", None], key=1)


def test_a_full_heap_refuses_calls_but_keeps_room_for_what_matters_more(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    numbers = [writer.intern("call", {"op": f"op{n}", "kind": "collective"}, key=n) for n in range(200)]
    kept = numbers.index(0)
    assert numbers[:kept] == list(range(1, kept + 1))
    assert set(numbers[kept:]) == {0}
    assert writer.full
    assert writer.words[Header.HEAP_REFUSED] == 200 - kept
    assert group(writer) == kept + 1
    assert writer.intern("call", {"op": "op0", "kind": "collective"}, key=0) == 1
    assert enter(writer, call_number=0) == 1
    trace = read(tmp_path / "j")
    assert [row.call.op for row in trace.operations.rows(3)] == ["unrecorded"]
    assert [note.partition(" ")[0] for note in trace.notes] == [str(200 - kept + 1)]  # and the call site


def test_entries_too_large_for_a_reader_are_not_written(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j", heap_bytes=4 << 20)
    assert writer.intern("text", "x" * (1 << 20)) == 0
    assert writer.intern("text", "y") == 1


def test_a_call_in_the_middle_of_interning_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """As from a signal handler: here ``json`` meets an object whose conversion interns again."""
    writer = new_writer(tmp_path / "j")
    inner: list[int] = []

    class Reentering(dict[str, object]):
        def items(self):  # type: ignore[no-untyped-def,override]  # stands for the moment of the signal
            inner.append(writer.intern("text", "inner", key="inner"))
            return super().items()

    outer = writer.intern("label", Reentering(op="outer"), key="outer")
    assert (inner, outer) == ([0], 1)
    assert writer.intern("text", "inner", key="inner") == 2
    read(tmp_path / "j")


def test_the_oldest_records_are_overwritten_and_late_words_for_them_go_nowhere(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    serials = [enter(writer, seq) for seq in range(1, 21)]
    before = bytes(writer.words)
    for late in serials[: 20 - SLOTS]:
        writer.left(late)
        writer.completed(late)
        writer.completion_unknown(late)
    assert bytes(writer.words) == before
    trace = read(tmp_path / "j")
    assert [row.seq for row in trace.operations.rows(3)] == list(range(13, 21))
    assert trace.dropped == 12


def test_that_completion_will_be_seen_can_be_taken_back(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    serial = enter(writer)
    writer.left(serial)
    assert next(read(tmp_path / "j").operations.rows(3)).pending
    writer.completion_unknown(serial)
    row = next(read(tmp_path / "j").operations.rows(3))
    assert (row.pending, row.call.completion_known, row.call.op) == (False, False, "all_reduce")


def test_a_detached_writer_writes_nowhere_and_waits_for_nobody(tmp_path: Path) -> None:
    """As in a forked child while a thread of its parent was interning."""
    writer = new_writer(tmp_path / "j")
    enter(writer)
    kept = (tmp_path / "j").read_bytes()
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._lock:
            entered.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(60)
    writer.detach()
    writer.left(enter(writer, 2))
    writer.mark(RecordType.STEP, name=writer.intern("text", "new"))
    writer.exiting(0)
    release.set()
    holder.join()
    assert (tmp_path / "j").read_bytes() == kept


def test_a_mark_keeps_numbers_from_zero_and_its_place(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    name = writer.intern("label", ["stop", None], key="stop")
    for value in (None, 0, 1, (1 << 62) - 1):
        writer.mark(RecordType.USER, name=name, value=value)
        enter(writer)
    marks = read(tmp_path / "j").marks
    assert [(mark.name, mark.value, mark.after) for mark in marks] == [
        ("stop", None, 0),
        ("stop", 0, 1),
        ("stop", 1, 2),
        ("stop", (1 << 62) - 1, 3),
    ]


def test_passes_beyond_the_last_64_are_forgotten(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    for batches in range(100):
        writer.pass_ended(batches)
    assert read(tmp_path / "j").progress.passes == tuple(range(36, 100))


@pytest.mark.parametrize("code", [None, 0, 1, 255, -9])
def test_the_exit_says_its_status_if_it_knows_it(tmp_path: Path, code: int | None) -> None:
    writer = new_writer(tmp_path / "j")
    assert read(tmp_path / "j").exit is None
    writer.exiting(code)
    writer.exiting(None)
    end = read(tmp_path / "j").exit
    assert end is not None
    assert (end.code, end.announced) == (code, True)


def test_a_rank_that_is_not_known_yet_has_no_trace(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j", rank=None)
    enter(writer)
    reader = JournalReader(str(tmp_path / "j"))
    assert (reader.rank, reader.trace()) == (None, None)
    writer.identify(0, None)
    trace = reader.trace()
    assert (reader.rank, reader.world_size, trace is not None) == (0, 4, True)
    reader.close()


def test_the_reader_follows_a_journal_that_grows(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    reader = JournalReader(str(tmp_path / "j"))
    assert reader.newest_operation() is None
    assert reader.pulse().records == 0
    serial = enter(writer)
    first = reader.content()
    assert reader.newest_operation() == "all_reduce"
    assert reader.pulse().pending_since is not None
    writer.completed(serial)
    assert reader.content() != first
    assert reader.pulse().pending_since is None
    enter(writer, call_number=call(writer, "broadcast"))
    assert reader.newest_operation() == "broadcast"
    trace = reader.trace()
    assert trace is not None
    assert [row.call.op for row in trace.operations.rows(3)] == ["all_reduce", "broadcast"]
    writer.mark(RecordType.STEP, site=site(writer, 8))
    assert (reader.newest_operation(), reader.pulse().operations) == (None, 2)
    writer.exiting(0)
    assert reader.exit_announced
    reader.close()


def test_a_record_whose_header_word_was_not_written_any_more_is_read(tmp_path: Path) -> None:
    """SIGKILL between the record and the header's word for it."""
    writer = new_writer(tmp_path / "j")
    enter(writer, 1)
    enter(writer, 2)
    writer.words[Header.RECORDS] = 1
    assert [row.seq for row in read(tmp_path / "j").operations.rows(3)] == [1, 2]


def test_a_torn_record_is_left_out_and_said(tmp_path: Path) -> None:
    """SIGKILL in the middle of a record: its last word is still that of the one before."""
    writer = new_writer(tmp_path / "j")
    for seq in range(1, 12):
        last = enter(writer, seq)
    word = 4096 // 8 + last % SLOTS * 16 + Field.CHECK
    writer.words[word] = last - SLOTS
    trace = read(tmp_path / "j")
    assert [row.seq for row in trace.operations.rows(3)] == list(range(4, 11))
    assert trace.notes == ("1 records were not finished when they were read",)


def test_async_is_told_of_collectives_only(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    for kind in ("collective", "p2p", "group"):
        enter(writer, call_number=call(writer, kind, kind), flags=RecordType.OPERATION | Flag.ASYNC)
    assert [row.call.is_async for row in read(tmp_path / "j").operations.rows(3)] == [True, None, None]


def test_a_send_on_which_somebody_waits_is_told_from_one_that_was_only_begun(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    for waits in (False, True):
        serial = enter(writer, call_number=call(writer, "send", "p2p"))
        if waits:
            writer.awaited(serial)
    writer.awaited(serial - SLOTS)  # overwritten since: nobody else's record is touched
    assert [row.call.is_async for row in read(tmp_path / "j").operations.rows(3)] == [None, False]


def test_a_new_writer_knows_its_process(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path / "j"), attempt=2)
    reader = JournalReader(str(tmp_path / "j"))
    with open("/proc/self/stat") as stat:
        started = int(stat.read().rpartition(")")[2].split()[19])
    assert (reader.pid, reader.attempt, reader.process_start) == (os.getpid(), 2, started)
    assert writer.slots == reader.slots
    reader.close()
