from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from desync.evidence.liveness import process_start
from desync.journal.layout import Flag, RecordType
from desync.journal.writer import JournalWriter
from desync.model import Evidence, Frame, Job, RankStacks, Stack
from desync.stacks.pyspy import TakenStacks
from desync.watch.observer import Observer

SECOND = 1_000_000_000
NODE = socket.gethostname()
FAULT = """Fatal Python error: Aborted

Current thread 0x00007f0000000001 (most recent call first):
  File "a.py", line 7 in f
"""


@pytest.mark.parametrize(("entered_s", "sources"), [(-1, ["py-spy"]), (1, ["faulthandler"])])
def test_what_a_dying_rank_left_counts_if_it_went_on_after_its_stack_was_taken(
    entered_s: int, sources: list[str], tmp_path: Path
) -> None:
    (tmp_path / "journals").mkdir()
    (tmp_path / "stacks").mkdir()
    pid = os.getpid()
    writer = JournalWriter(str(tmp_path / "journals" / f"a0.{NODE}.{pid}.journal"))
    writer.identify(0, 1)
    group = writer.intern("group", {"name": "0", "ranks": [0], "backend": "gloo"}, key="0")
    call = writer.intern("call", {"op": "barrier", "kind": "collective", "in": [[], [], 0], "out": [[], [], 0]}, key="barrier")
    now = time.monotonic_ns() + entered_s * SECOND
    writer.operation(RecordType.OPERATION | Flag.COMPLETION_KNOWN, group, 1, call, 0, 0, 0, 7, 0, now)
    left = tmp_path / "stacks" / f"a0.{NODE}.{pid}.fault"
    left.write_text(FAULT)
    os.utime(left, (time.time() + 2,) * 2)  # the rank died after all that
    taken = RankStacks(0, "py-spy", time.time_ns(), (Stack("MainThread", (Frame("f", "a.py", 3),)),))
    takes = TakenStacks((taken,), ("no stack of rank 1",))
    observer = Observer(tmp_path, Job(world_size=1), SECOND, take_stacks=lambda *_: takes)

    observer.refresh()
    observer.take_stacks({0: pid}, 1.0, native=False)
    found = observer.evidence(ended=True)
    well = observer.without_stacks(found)
    observer.close()

    assert [stack.source for stack in found.stacks] == sources
    assert well.stacks == ()
    assert "no stack of rank 1" in found.notes
    assert well.notes == tuple(note for note in found.notes if note != "no stack of rank 1")


def test_a_rank_that_went_on_after_a_signal_has_left_no_stack_of_its_end(tmp_path: Path) -> None:
    writer = only_rank(tmp_path)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / f"a0.{NODE}.{os.getpid()}.fault").write_text(FAULT)
    found = seen(tmp_path, ended=True)
    assert [stack.source for stack in found.stacks] == ["faulthandler"]
    group = writer.intern("group", {"name": "0", "ranks": [0], "backend": "gloo"}, key="0")
    call = writer.intern("call", {"op": "barrier", "kind": "collective", "in": [[], [], 0], "out": [[], [], 0]}, key="barrier")
    later = time.monotonic_ns() + SECOND
    writer.operation(RecordType.OPERATION | Flag.COMPLETION_KNOWN, group, 1, call, 0, 0, 0, 7, 0, later)
    assert seen(tmp_path, ended=True).stacks == ()


def test_a_status_that_a_rank_has_named_counts_only_when_it_has_ended(tmp_path: Path) -> None:
    """It may catch its own ``sys.exit``."""
    only_rank(tmp_path).exiting(2)
    (trace,) = seen(tmp_path).traces
    assert trace.exit is not None
    assert (trace.exit.announced, trace.exit.code) == (True, None)


def only_rank(folder: Path) -> JournalWriter:
    (folder / "journals").mkdir()
    writer = JournalWriter(str(folder / "journals" / f"a0.{NODE}.{os.getpid()}.journal"))
    writer.identify(0, 1)
    return writer


def seen(folder: Path, ended: bool = False) -> Evidence:
    observer = Observer(folder, Job(world_size=1), SECOND, take_stacks=lambda *_: TakenStacks(()))
    observer.refresh()
    found = observer.evidence(ended=ended)
    observer.close()
    return found


def test_a_job_is_ending_when_all_who_live_have_said_so(tmp_path: Path) -> None:
    (tmp_path / "journals").mkdir()
    pid = os.getpid()
    writers = [JournalWriter(str(tmp_path / "journals" / f"a0.{NODE}.{pid}{more}.journal")) for more in ("", "00")]
    for rank, writer in enumerate(writers):
        writer.identify(rank, 2)
    observer = Observer(tmp_path, Job(world_size=2), SECOND, take_stacks=lambda *_: TakenStacks(()))
    observer.refresh()
    writers[0].exiting(0)
    assert not observer.all_are_ending()
    writers[1].exiting(1)
    assert observer.all_are_ending()
    observer.close()


def test_a_rank_with_the_number_of_one_that_has_ended_lives(tmp_path: Path) -> None:
    (tmp_path / "journals").mkdir()
    pid, started = os.getpid(), process_start(os.getpid())
    assert started
    JournalWriter(str(tmp_path / "journals" / f"a1.{NODE}.{pid}.journal"), attempt=1).identify(0, 1)
    observer = Observer(tmp_path, Job(world_size=1), SECOND, take_stacks=lambda *_: TakenStacks(()))
    observer._exit_watch.add(pid, started - 1)  # the rank of the attempt before
    observer.refresh()
    found = (observer.live_pids(), observer.ended_ranks(), observer.exits())
    observer.close()
    assert found == ({0: pid}, {}, {})
