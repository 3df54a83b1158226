"""Reading while another process writes: every row that is read is one that was written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from desync.journal.reader import JournalReader
from desync.model import Trace
from tests.conftest import ROOT

WRITER = """
import sys
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
