"""Journals for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

from desync.journal.layout import Flag, Header, RecordType
from desync.journal.reader import JournalReader
from desync.journal.writer import JournalWriter
from desync.model import Trace

SLOTS = 8
HEAP_BYTES = 4096
OPERATION = RecordType.OPERATION | Flag.COMPLETION_KNOWN


def new_writer(path: Path, *, slots: int = SLOTS, heap_bytes: int = HEAP_BYTES, rank: int | None = 3) -> JournalWriter:
    writer = JournalWriter(str(path), slots=slots, heap_bytes=heap_bytes)
    writer.identify(rank, 4)
    return writer


def call(writer: JournalWriter, op: str = "all_reduce", kind: str = "collective") -> int:
    payload = {"op": op, "kind": kind, "in": [[[2, 3]], ["float32"], 0], "reduce_op": "sum"}
    return writer.intern("call", payload, key=(op, kind))


def group(writer: JournalWriter, name: str = "default_pg") -> int:
    return writer.intern("group", {"name": name, "ranks": [0, 1, 2, 3], "description": name, "backend": "gloo"}, key=name)


def site(writer: JournalWriter, line: int = 7) -> int:
    return writer.intern("site", [["step", "/home/ada/train.py", line], ["main", "/home/ada/train.py", 90]], key=line)


def enter(writer: JournalWriter, seq: int = 1, *, call_number: int | None = None, flags: int = OPERATION, peer: int = 0) -> int:
    """Record that an operation is entered, with everything that it can have."""
    number = call(writer) if call_number is None else call_number
    return writer.operation(flags, group(writer), seq, number, site(writer), peer, 0, 4711, 0, 1000 + seq)


def rich(path: Path) -> None:
    """A journal with an example of everything."""
    writer = new_writer(path, slots=32, heap_bytes=8192)
    writer.intern("info", {"torch": "2.13.0", "node": "here"})
    writer.left(enter(writer))
    failed = enter(writer, 2)
    writer.completed(failed, failed=True)
    writer.left(enter(writer, 1, call_number=call(writer, "send", "p2p"), flags=OPERATION | Flag.HAS_TAG, peer=2))
    enter(writer, 3)
    label = writer.intern("label", ["Numbers", None], key="Numbers")
    for kind in range(RecordType.FETCH, RecordType.USER + 1):
        writer.left(writer.mark(kind, name=label, value=kind, site=site(writer)))
    failure = {"type": "ValueError", "message": "no", "frames": [["f", "g.py", 1]], "uncaught": True, "out_of_memory": False}
    writer.mark(RecordType.EXCEPTION, name=writer.intern("failure", failure))
    module = {"name": "Net", "group": "default_pg", "parameters": ["w", "b"], "buckets": [[1, 0]]}
    writer.intern("ddp", {**module, "find_unused_parameters": True, "static_graph": False})
    writer.note("something is missing")
    for header in (Header.BATCHES, Header.FORWARDS, Header.BACKWARDS, Header.STEPS):
        writer.count(header)
    writer.pass_ended(5)
    writer.exiting(3)


def read(path: Path) -> Trace:
    reader = JournalReader(str(path))
    try:
        trace = reader.trace()
    finally:
        reader.close()
    assert trace is not None
    return trace
