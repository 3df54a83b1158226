import os
import re
import time
from pathlib import Path

import pytest

from desync.evidence.journals import JournalFolder
from desync.journal.layout import Flag, Header, RecordType
from desync.journal.writer import JournalWriter
from desync.model import Activity, Exit, Job, Motion, RankStacks


def journal(
    folder: Path,
    rank: int,
    pid: int,
    *,
    attempt: int = 0,
    world: int = 2,
    started: int = 0,
    ancestor: int = 0,
    works: bool = True,
) -> JournalWriter:
    """A small journal of a rank that has entered one all_reduce (if it ``works``)."""
    folder.mkdir(exist_ok=True)
    path = str(folder / f"a{attempt}.node.x.{pid}.journal")
    writer = JournalWriter(path, attempt=attempt, ancestor=ancestor, slots=64, heap_bytes=1 << 16)
    writer.words[Header.PID] = pid
    writer.words[Header.PROCESS_START] = started
    writer.identify(rank, world)
    writer.intern("info", {"torch": "2.13.0", "python": "3.11"})
    if works:
        enter(writer, 1)
    return writer


def enter(writer: JournalWriter, seq: int) -> int:
    group = writer.intern("group", {"name": "0", "ranks": [0, 1], "backend": "gloo"}, key="group")
    call = writer.intern("call", {"op": "all_reduce", "kind": "collective"}, key="call")
    kind = RecordType.OPERATION | Flag.COMPLETION_KNOWN
    return writer.operation(kind, group, seq, call, 0, 0, 0, 1, 0, time.monotonic_ns())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journals"


def test_journals_appear_at_any_time_and_the_evidence_grows_with_them(folder: Path) -> None:
    journals = JournalFolder(folder)
    journals.refresh()
    assert journals.attempts == ()
    assert journals.evidence(Job(command=("x",))).traces == ()
    first = journal(folder, 1, pid=11)
    (folder / "a0.node.12.journal").write_bytes(b"not ready")
    (folder / "something else").write_text("x")
    journals.refresh()
    evidence = journals.evidence(
        Job(command=("x",)),
        activities={0: Activity(0, Motion.FROZEN)},
        stacks=(RankStacks(1, "py-spy", None, ()),),
        observed_at=5,
        hang_after_ns=7,
        notes=("first",),
    )
    assert [trace.rank for trace in evidence.traces] == [1]
    assert (evidence.job.world_size, evidence.job.torch, evidence.job.backends) == (2, "2.13.0", ("gloo",))
    assert evidence.job.nodes == ("node.x",)
    assert (evidence.observed_at, evidence.hang_after_ns, evidence.ended) == (5, 7, False)
    assert evidence.notes[0] == "first"
    assert any("cannot be read" in note for note in evidence.notes[1:])
    os.unlink(folder / "a0.node.12.journal")
    journal(folder, 0, pid=12)
    journals.refresh()
    first.completed(1)
    enter(first, 2)
    traces = journals.evidence(Job()).traces
    assert [(trace.rank, trace.pid, len(trace.operations)) for trace in traces] == [(0, 12, 1), (1, 11, 2)]
    assert [op.pending for op in traces[1].operations.rows(1)] == [False, True]
    assert journals.pulses()[1].records == 2
    assert journals.newest_operation() == "all_reduce"
    assert {rank: process.pid for rank, process in journals.ranks().items()} == {0: 12, 1: 11}
    journals.close()


def test_a_completion_of_an_older_operation_is_seen_although_no_record_was_added(folder: Path) -> None:
    writer = journal(folder, 0, pid=1)
    enter(writer, 2)
    journals = JournalFolder(folder)
    journals.refresh()
    before = journals.evidence(Job()).traces[0]
    assert journals.evidence(Job()).traces[0] is before, "an unchanged journal is not decoded again"
    writer.completed(1, failed=True)
    rows = list(journals.evidence(Job()).traces[0].operations.rows(0))
    assert [row.failed for row in rows] == [True, False]


def test_attempts_are_kept_apart(folder: Path) -> None:
    for attempt in (0, 1):
        for rank in (0, 1):
            journal(folder, rank, pid=10 * attempt + rank + 1, attempt=attempt)
    journals = JournalFolder(folder)
    journals.refresh()
    assert journals.attempts == (0, 1)
    assert [trace.pid for trace in journals.evidence(Job()).traces] == [11, 12]
    old = journals.evidence(Job(), attempt=0)
    assert [trace.pid for trace in old.traces] == [1, 2]
    assert (old.job.attempt, journals.evidence(Job()).job.attempt) == (0, 1)


def test_of_ranks_that_were_spawned_twice_the_newer_generation_counts(folder: Path) -> None:
    for rank in range(3):
        journal(folder, rank, pid=10 + rank, world=3, started=100)
    for rank in range(2):
        journal(folder, rank, pid=5 + rank, world=2, started=200)
    journals = JournalFolder(folder)
    journals.refresh()
    assert [(trace.rank, trace.pid) for trace in journals.evidence(Job()).traces] == [(0, 5), (1, 6)]


def processes(folder: Path) -> dict[int, int]:
    """Number of the process of each rank."""
    journals = JournalFolder(folder)
    journals.refresh()
    found = {rank: process.pid for rank, process in journals.ranks().items()}
    journals.close()
    return found


def test_a_process_without_operations_does_not_replace_the_rank(folder: Path) -> None:
    first = journal(folder, 1, pid=11, started=100)
    helper = journal(folder, 1, pid=12, started=200, works=False)
    assert processes(folder) == {1: 11}
    enter(helper, 1)  # the real training, which a wrapper started
    assert processes(folder) == {1: 12}
    journal(folder, 1, pid=13, started=300, works=False)
    assert processes(folder) == {1: 12}
    enter(first, 2)
    assert processes(folder) == {1: 12}


def test_the_next_program_of_a_rank_replaces_one_that_has_ended(folder: Path) -> None:
    journal(folder, 1, pid=11, started=100).exiting(0)
    journal(folder, 1, pid=12, started=200, works=False)
    assert processes(folder) == {1: 12}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_of_its_own_that_a_helper_makes_does_not_replace_the_ranks(folder: Path, rank: int) -> None:
    for number in range(2):
        journal(folder, number, pid=10 + number, started=100)
    journal(folder, 0, pid=20, world=1, started=200, ancestor=10 + rank)
    journal(folder, 0, pid=30, world=1, started=300, ancestor=20)  # a helper's helper
    assert processes(folder) == {0: 10, 1: 11}


def test_descendants_may_be_the_ranks_of_a_larger_or_later_job(folder: Path) -> None:
    first = journal(folder, 0, pid=10, world=2, started=100, ancestor=5)  # a wrapper without a journal
    for rank in range(3):
        journal(folder, rank, pid=20 + rank, world=3, started=200, ancestor=10)
    assert processes(folder) == {0: 20, 1: 21, 2: 22}
    first.exiting(0)
    journal(folder, 0, pid=40, world=1, started=400, ancestor=10)
    assert processes(folder) == {0: 40}


def test_ancestors_that_go_in_a_circle_are_followed_once(folder: Path) -> None:
    journal(folder, 0, pid=10, ancestor=11)
    journal(folder, 1, pid=11, ancestor=10)
    assert processes(folder) == {0: 10, 1: 11}


def test_exits_seen_from_outside_and_announced_ones_are_joined(folder: Path) -> None:
    announced = journal(folder, 0, pid=1)
    announced.exiting(0)
    journal(folder, 1, pid=2)
    journals = JournalFolder(folder)
    journals.refresh()
    assert journals.announced() == {0: True, 1: False}
    exits = {1: Exit(time=10, code=-6), 2: Exit(time=20, code=None), 3: Exit(time=30, code=1)}
    first, second = (trace.exit for trace in journals.evidence(Job(), exits=exits).traces)
    assert first is not None
    assert (first.code, first.announced) == (-6, True)
    assert first.time is not None
    assert first.time > 10**18, "the moment that the rank announced, not the one at which it was seen to be gone"
    assert second == Exit(time=20, code=None, announced=False)
    unknown = journals.evidence(Job(), exits={1: Exit(time=10)}).traces[0].exit
    assert unknown is not None
    assert unknown.code == 0, "without a status from outside the announced one holds"


def test_what_a_recorder_without_a_journal_said_becomes_a_note(folder: Path) -> None:
    folder.mkdir()
    (folder / "77.note").write_text("rank 1 (pid 77): no journal: disk full\n" + "x" * 100_000)
    (folder / "78.note").symlink_to("/etc/passwd")
    os.mkfifo(folder / "79.note")
    notes = JournalFolder(folder).notes()
    assert notes[0] == "rank 1 (pid 77): no journal: disk full"
    assert sum(map(len, notes)) < 1000


def test_open_journals_keep_no_memory_between_two_looks(folder: Path) -> None:
    folder.mkdir()
    writer = JournalWriter(str(folder / "a0.node.x.11.journal"))
    writer.identify(0, 1)
    enter(writer, 1)
    journals = JournalFolder(folder)
    journals.refresh()
    for _ in range(2):
        assert journals.evidence(Job()).traces
        # The writer of this test maps the file as well, writable; the reader's mapping is the one that is not.
        mapping = rf"r--s .*{re.escape(writer.path)}\n(?:\w+: .*\n)*?Rss: +(\d+) kB"
        (resident,) = re.findall(mapping, Path("/proc/self/smaps").read_text())
        # Its header is read afterwards; the kernel maps a few pages around what is touched.  The ring has 2048 kB.
        assert int(resident) <= 256
    journals.close()
