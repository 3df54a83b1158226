from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from desync.journal.layout import Header
from desync.journal.reader import JournalReader
from desync.recorder import exceptions, exits, session
from desync.recorder.samplers import PASSES, Samplers
from desync.recorder.session import MAX_FAILURES, Session, quiet


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DESYNC_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("DESYNC_JOURNAL_SLOTS", "64")
    monkeypatch.setenv("DESYNC_JOURNAL_HEAP_BYTES", "65536")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    monkeypatch.setattr(session, "current", None)
    monkeypatch.setattr(session, "_refused", False)
    monkeypatch.setattr(session, "_watch_forks", lambda: None)
    return tmp_path


@pytest.fixture
def owner(run_directory: Path) -> Session:
    begun = session.begin(1, 2)
    assert begun is not None
    return begun


def notes(owner: Session) -> tuple[str, ...]:
    reader = JournalReader(owner.writer.path)
    trace = reader.trace()
    reader.close()
    assert trace is not None
    return trace.notes


def test_a_process_begins_once_and_its_rank_may_be_known_later(run_directory: Path) -> None:
    first = session.begin(None, None)
    assert first is not None
    assert session.begin(3, 4) is first
    (path,) = (run_directory / "journals").iterdir()
    reader = JournalReader(str(path))
    assert (reader.rank, reader.world_size) == (3, 4)
    reader.close()


def test_a_process_that_replaced_itself_gets_another_journal(run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    paths = []
    for _ in range(3):
        monkeypatch.setattr(session, "current", None)
        begun = session.begin(0, 1)
        assert begun is not None
        paths.append(Path(begun.writer.path).name)
    pid = os.getpid()
    host = os.uname().nodename
    assert paths == [f"a2.{host}.{pid}.journal", f"a2.{host}.{pid}01.journal", f"a2.{host}.{pid}02.journal"]


def test_without_a_run_directory_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DESYNC_RUN_DIR", raising=False)
    monkeypatch.setattr(session, "current", None)
    assert session.begin(0, 1) is None


@pytest.mark.parametrize("slots", ["many", "0", "-5", "99999999999999"])
def test_a_journal_that_cannot_be_had_is_asked_for_once(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, slots: str
) -> None:
    monkeypatch.setenv("DESYNC_JOURNAL_SLOTS", slots)
    assert session.begin(0, 1) is None
    assert session.begin(0, 1) is None
    (note,) = (run_directory / "journals").iterdir()
    assert note.name == f"{os.getpid()}.note"
    assert note.read_text().count("no journal") == 1
    assert note.stat().st_mode & 0o777 == 0o600


def test_what_fails_returns_none_and_is_said_once(owner: Session) -> None:
    calls = mock.Mock(side_effect=RuntimeError("broken"), __name__="part")
    part = quiet("testing")(calls)
    for _ in range(MAX_FAILURES * 2):
        assert part() is None
    assert calls.call_count == MAX_FAILURES  # it was switched off then
    said = notes(owner)
    assert said[0] == "testing failed on this rank: RuntimeError: broken"
    assert said[1].startswith(f"testing failed {MAX_FAILURES} times")
    assert len(said) == 2
    assert quiet("another part")(mock.Mock(return_value=5, __name__="other"))() == 5


def test_what_others_raise_goes_through(owner: Session) -> None:
    @quiet("testing")
    def interrupted() -> None:
        raise TimeoutError("a signal handler of the job's")  # this file is not the recorder's

    with pytest.raises(TimeoutError):
        interrupted()
    with pytest.raises(KeyboardInterrupt):
        quiet("testing")(mock.Mock(side_effect=KeyboardInterrupt, __name__="x"))()
    assert notes(owner) == ()


def test_a_failure_is_said_beside_the_journal_if_not_in_it(owner: Session, run_directory: Path) -> None:
    with mock.patch.object(owner.writer, "note", side_effect=OSError("gone")):
        quiet("testing")(mock.Mock(side_effect=RuntimeError("broken"), __name__="part"))()
    assert "testing failed on this rank" in (run_directory / "journals" / f"{os.getpid()}.note").read_text()


class UnspeakableError(Exception):
    """Whatever it is asked raises; as settings that are resolved late, or proxies of something that is gone."""

    def __str__(self) -> str:
        raise LookupError("no words")


class Touchy:
    """Not to be touched."""

    def __hash__(self) -> int:
        raise UnspeakableError

    def __eq__(self, _other: object) -> bool:
        raise UnspeakableError

    def __bool__(self) -> bool:
        raise UnspeakableError

    def __str__(self) -> str:
        raise UnspeakableError


@pytest.mark.parametrize("error", [RuntimeError("bad batch", Touchy()), UnspeakableError(Touchy()), SystemExit(Touchy())])
def test_exceptions_that_cannot_be_asked_anything_are_recorded(owner: Session, error: BaseException) -> None:
    for _ in range(3):
        try:
            raise error
        except BaseException:  # noqa: BLE001 - it is the test's own
            exceptions.held_back(owner)
            with pytest.raises(SystemExit, match="3"):
                sys.exit(3)
    assert owner.writer.words[Header.RECORDS] == 1
    assert notes(owner) == ()


def test_what_special_methods_of_the_jobs_objects_raise_is_the_recorders_own_failure(owner: Session) -> None:
    assert quiet("testing")(functools.partial(hash, Touchy()))() is None
    assert notes(owner) == ("testing failed on this rank: UnspeakableError",)
    exceptions._thread_name(Touchy())


def test_samplers_that_cannot_be_asked_are_left_alone(owner: Session) -> None:
    class Sampler(Touchy):
        dataset, shuffle, epoch = (), True, 2

    class Proxy(Sampler):
        @property
        def epoch(self) -> int:  # type: ignore[override]  # for whom it was made, it is one
            raise UnspeakableError

    samplers = Samplers(owner)
    plain, proxy = Sampler(), Proxy()
    for _ in range(PASSES + 1):
        samplers._begins(plain)
        samplers._begins(proxy)
    samplers._begins(Sampler())
    assert notes(owner) == ()
    reader = JournalReader(owner.writer.path)
    assert reader.rank == 1
    trace = reader.trace()
    reader.close()
    assert trace is not None
    assert [(sampler.name, sampler.epochs) for sampler in trace.samplers] == [("tuple", (2,) * PASSES), ("tuple", (2,))]


def test_a_note_is_never_written_through_a_link(
    run_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_directory / "journals").mkdir()
    target = tmp_path / "of_others.txt"
    target.write_text("kept")
    (run_directory / "journals" / f"{os.getpid()}.note").symlink_to(target)
    session.complain("something")
    assert target.read_text() == "kept"
    assert "something" in capsys.readouterr().err


def test_a_forked_child_forgets_its_parents_session(owner: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    undone: list[str] = []
    monkeypatch.setattr(
        session, "forgetting", [lambda: undone.append("first"), mock.Mock(side_effect=OSError), lambda: undone.append("last")]
    )
    before = Path(owner.writer.path).read_bytes()
    session._forget()
    assert session.current is None
    assert undone == ["last", "first"]
    owner.writer.note("lost")
    owner.writer.exiting(0)
    assert Path(owner.writer.path).read_bytes() == before


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (type("OutOfMemoryError", (RuntimeError,), {})("x"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_running_out_of_memory_is_recognised(error: BaseException, expected: bool) -> None:
    assert exceptions.is_out_of_memory(error) == expected


def test_exceptions_are_bounded(owner: Session) -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError("x" * 100_000)

    try:
        deep(200)
    except ValueError as error:
        for _ in range(1000):
            exceptions.record(owner, error, uncaught=True)
    reader = JournalReader(owner.writer.path)
    trace = reader.trace()
    reader.close()
    assert trace is not None
    failure = trace.marks[-1].failure
    assert failure is not None
    assert len(failure.message) == exceptions.MAX_MESSAGE
    assert len(failure.frames) == exceptions.MAX_FRAMES
    assert {frame.function.rpartition(".")[2] for frame in failure.frames} == {"deep"}
    assert trace.notes == ()  # the same thousand times is one entry


@pytest.mark.parametrize(("status", "code"), [(None, 0), (0, 0), (3, 3), (True, 1), ("no data", 1)])
def test_sys_exits_status_is_remembered(owner: Session, status: object, code: int) -> None:
    exits._remember(status, sys._getframe())
    assert owner.exit_code == code
    exits._forget_caught_exit(owner)
    assert owner.exit_code == code
    assert owner.exit_site > 0


def test_an_exit_after_which_the_rank_went_on_was_caught(owner: Session) -> None:
    exits._remember(3, sys._getframe())
    owner.writer.count(Header.STEPS)
    exits._forget_caught_exit(owner)
    assert (owner.exit_code, owner.exit_site) == (None, 0)
