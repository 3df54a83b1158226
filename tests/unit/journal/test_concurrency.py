"""Reading while another process writes: every row that is read is one that was written."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from desync.journal.layout import HEADER_BYTES, RECORD_WORDS, WORD, Field
from desync.journal.reader import JournalReader
from desync.model import Trace
from tests.conftest import ROOT
from tests.unit.journal.journals import SLOTS, enter, new_writer

WRITER = """
import sys
from collections.abc import Callable
from desync.journal.layout import Flag, RecordType
from desync.journal.writer import JournalWriter

writer = JournalWriter(sys.argv[1], slots=4096, heap_bytes=1 << 20)
writer.identify(0, 1)
group = writer.intern("group", {"name": "g", "ranks": [0]}, key="g")
n = 0
while True:
    n += 1
    call = writer.intern("call", {"op": f"op{n % 500}", "kind": "p2p"}, key=n % 500)
    serial = writer.operation(RecordType.OPERATION | Flag.HAS_TAG, group, n, call, 0, n + 1, n, 1, 0, n)
    writer.left(serial)
    writer.mark(RecordType.USER, value=n)
    if n == 1000:
        print("ready", flush=True)
"""
READS = 15


def check(trace: Trace) -> int:
    """The number of the newest row, all rows being consistent in themselves and in order."""
    last = 0
    for row in trace.operations.rows(0):
        assert row.seq > last
        last = row.seq
        assert (row.call.op, row.call.tag, row.call.peer) == (f"op{row.seq % 500}", row.seq, row.seq)
    for mark in trace.marks:
        assert mark.value == mark.after
    assert not any("damaged" in note for note in trace.notes)
    return last


def test_rows_read_while_they_are_written_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    environment = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, env=environment) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            reader = JournalReader(str(path))
            newest = [check(trace) for _ in range(READS) if (trace := reader.trace()) is not None]
        finally:
            writer.send_signal(signal.SIGKILL)
    # None is read where the writer went once around the ring while it was copied.
    seen = [number for number in newest if number]
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
    # What was written last before SIGKILL is there, whatever it was in the middle of.
    trace = reader.trace()
    assert trace is not None
    assert check(trace) >= seen[-1]
    assert len(trace.operations) + len(trace.marks) >= 4095
    reader.close()


class Interrupted(JournalReader):
    """A reader whose rank goes on while the ring is copied: before each copy, ``meanwhile`` says what has happened."""

    def __init__(self, path: str, meanwhile: list[Callable[[bytes], bytes]]) -> None:
        super().__init__(path)
        self.meanwhile = meanwhile

    def content(self) -> bytes:
        copied = super().content()
        return self.meanwhile.pop(0)(copied) if self.meanwhile else copied


def test_a_record_whose_end_was_copied_without_its_middle_is_taken_whole(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    for seq in range(1, 5):
        enter(writer, seq)

    def half_written(copied: bytes) -> bytes:
        at = HEADER_BYTES + 4 * RECORD_WORDS * WORD
        return copied[: at + Field.CALL * WORD] + bytes((Field.CHECK - Field.CALL) * WORD) + copied[at + Field.CHECK * WORD :]

    trace = Interrupted(str(tmp_path / "j"), [half_written]).trace()
    assert trace is not None
    assert [(row.seq, row.call.op) for row in trace.operations.rows(3)] == [(seq, "all_reduce") for seq in range(1, 5)]


def test_what_was_entered_between_the_copies_waits_for_the_next_look(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    enter(writer, 1)

    def then_one_more(copied: bytes) -> bytes:
        enter(writer, 2)
        return copied

    reader = Interrupted(str(tmp_path / "j"), [then_one_more])
    for seen in (1, 2):
        trace = reader.trace()
        assert trace is not None
        assert (len(trace.operations), trace.notes) == (seen, ())


def test_a_ring_that_was_overwritten_behind_the_copy_has_lost_its_beginning_and_no_middle(tmp_path: Path) -> None:
    """The copy stood still inside the ring while the rank went past it."""
    writer = new_writer(tmp_path / "j")
    for seq in range(1, SLOTS):
        enter(writer, seq)

    def stood_still(copied: bytes) -> bytes:
        for seq in range(SLOTS, SLOTS + 6):
            enter(writer, seq)
        halfway = HEADER_BYTES + 4 * RECORD_WORDS * WORD
        return copied[:halfway] + (tmp_path / "j").read_bytes()[halfway : len(copied)]

    trace = Interrupted(str(tmp_path / "j"), [lambda copied: copied, stood_still]).trace()
    assert trace is not None
    assert ([row.seq for row in trace.operations.rows(3)], trace.dropped, trace.notes) == ([6, 7], 5, ())
