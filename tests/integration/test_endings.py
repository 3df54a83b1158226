"""However a rank ends, its status stays its own and its journal says what can be said."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from desync.model import Mark, MarkKind, Trace
from tests.integration import jobs
from tests.integration.jobs import at, line_of, marks, operations

pytestmark = pytest.mark.job

PROGRAM = jobs.PROGRAMS / "endings.py"
STATUSES = {
    "returns": 0,
    "raises": 1,
    "raises_in_torch": 1,
    "exits": 3,
    "exits_with_a_text": 1,
    "exits_in_a_thread": 0,
    "exits_at_once": 5,
    "catches_its_exit": 0,
    "waits_for_a_thread": 0,
    "is_killed": -signal.SIGKILL,
    "is_terminated": -signal.SIGTERM,
    "handles_sigterm": 11,
    "is_interrupted": -signal.SIGINT,
    "runs_out_of_memory": 1,
    "skips_what_does_not_fit": 0,
    "holds_back": 1,
    "recovers": 0,
    "hides_its_exceptions": 1,
    "raises_in_a_thread": 0,
    "cannot_be_printed": 1,
    "is_transparent": 0,
}
"""In the order of the program's list, which is that of the ranks."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> jobs.Finished:
    folder = tmp_path_factory.mktemp("run")
    finished = jobs.run_alone(PROGRAM, folder, str(folder))
    assert finished.status == 0, finished.output
    assert sorted(finished.traces) == list(range(len(STATUSES)))
    assert {trace.notes for trace in finished.traces.values()} == {()}
    return finished


def trace_of(job: jobs.Finished, ending: str) -> Trace:
    return job.traces[list(STATUSES).index(ending)]


def exceptions(trace: Trace) -> list[tuple[str | None, Mark]]:
    """The exception marks with the markers of their lines."""
    return [(at(mark, PROGRAM), mark) for mark in marks(trace, MarkKind.EXCEPTION)]


def stacks(job: jobs.Finished, ending: str) -> str:
    return (job.folder / "stacks" / f"a0.{socket.gethostname()}.{trace_of(job, ending).pid}.fault").read_text()


def test_every_rank_ends_with_its_own_status(job: jobs.Finished) -> None:
    assert json.loads((job.folder / "statuses.json").read_text()) == STATUSES


def test_statuses_are_recorded_where_the_interpreter_tells_them(job: jobs.Finished) -> None:
    said = {}
    for ending in STATUSES:
        exit_ = trace_of(job, ending).exit
        said[ending] = exit_.code if exit_ is not None else "nothing"
    untold = {ending: None for ending, status in STATUSES.items() if status == 0}
    killed = {"is_killed": "nothing", "is_terminated": "nothing"}
    assert said == {**STATUSES, **untold, **killed}
    counts = {ending: len(marks(trace_of(job, ending), MarkKind.EXIT)) for ending in STATUSES}
    assert counts == {ending: 0 if ending in killed else 1 for ending in STATUSES}


@pytest.mark.parametrize(
    ("ending", "kind", "message", "marker"),
    [
        ("raises", "ValueError", "the loss is nan\nin every element", "raises"),
        ("raises_in_torch", "RuntimeError", "shape '[3]' is invalid for input of size 2", "raises_in_torch"),
        ("runs_out_of_memory", "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        ("hides_its_exceptions", "ArithmeticError", "hidden", "hidden"),
        ("raises_in_a_thread", "OSError", "in a thread", "in_a_thread"),
    ],
)
def test_an_uncaught_exception_is_marked_with_its_line(
    job: jobs.Finished, ending: str, kind: str, message: str, marker: str
) -> None:
    found = exceptions(trace_of(job, ending))
    assert [place for place, _ in found] == [marker]
    failure = found[0][1].failure
    assert failure is not None
    assert (failure.type, failure.message, failure.uncaught) == (kind, message, True)
    assert failure.thread == ("worker" if ending == "raises_in_a_thread" else None)
    assert failure.out_of_memory == (ending == "runs_out_of_memory")
    assert failure.frames[0].line == line_of(PROGRAM, marker)
    assert failure.frames[0].file == str(PROGRAM)
    # Its own excepthook, or the interpreter's, still had its say.
    printed = (job.folder / f"{ending}.out").read_text()
    assert ("nothing to see here" if ending == "hides_its_exceptions" else message.splitlines()[-1]) in printed


def test_an_exception_without_a_text_is_marked_all_the_same(job: jobs.Finished) -> None:
    (_, mark), *others = exceptions(trace_of(job, "cannot_be_printed"))
    assert others == []
    assert mark.failure is not None
    assert mark.failure.type.endswith("Strange")
    assert "RuntimeError" in mark.failure.message


def test_an_exception_that_finally_holds_back_is_marked_before_the_barrier(job: jobs.Finished) -> None:
    trace = trace_of(job, "holds_back")
    held, uncaught = exceptions(trace)
    for _, mark in (held, uncaught):
        assert mark.failure is not None
        assert (mark.failure.type, mark.failure.message) == ("KeyError", "'missing'")
    assert [mark.failure.uncaught for _, mark in (held, uncaught) if mark.failure] == [False, True]
    assert (held[0], uncaught[0]) == ("missing", "missing")
    following = operations(trace)[held[1].after]
    assert (following.call.op, at(following, PROGRAM)) == ("barrier", "finally")
    assert uncaught[1].after == len(operations(trace))


def test_handled_exceptions_are_marked_once_each(job: jobs.Finished) -> None:
    messages = [mark.failure.message for _, mark in exceptions(trace_of(job, "recovers")) if mark.failure]
    assert messages == ["first", "second"]


def test_memory_that_ran_out_and_was_caught_is_marked_as_passing(job: jobs.Finished) -> None:
    trace = trace_of(job, "skips_what_does_not_fit")
    passed = [mark.failure for mark in trace.passed_failures if mark.failure is not None]
    assert [failure.out_of_memory for failure in passed] == [True, True]
    assert [at(mark, PROGRAM) for mark in trace.passed_failures[:1]] == ["in_forward"]
    assert "in backward" in passed[1].message
    assert passed[1].frames[0].line == line_of(PROGRAM, "in_backward")
    held = trace.failure
    assert held is not None, "the handler of the second one goes on to communicate"
    assert held.failure is not None
    assert (held.failure.message, held.failure.passed, held.after) == (passed[1].message, False, len(operations(trace)) - 1)


def test_leaving_by_sys_exit_is_said_while_the_rank_still_cleans_up(job: jobs.Finished) -> None:
    trace = trace_of(job, "exits")
    (_, mark), *others = exceptions(trace)
    assert others == []
    assert mark.failure is not None
    assert (mark.failure.type, mark.failure.message, mark.failure.uncaught) == ("SystemExit", "3", False)
    assert mark.failure.frames[0].file == str(PROGRAM)
    assert operations(trace)[mark.after].call.op == "destroy_process_group"
    assert exceptions(trace_of(job, "returns")) == []
    assert exceptions(trace_of(job, "exits_in_a_thread")) == []


def test_an_exit_that_was_asked_for_is_marked_with_its_line(job: jobs.Finished) -> None:
    places = {ending: at(mark, PROGRAM) for ending in STATUSES for mark in marks(trace_of(job, ending), MarkKind.EXIT)}
    assert (places["exits"], places["exits_at_once"]) == ("sys_exit", "os_exit")
    sites = {ending: mark.site for ending in STATUSES for mark in marks(trace_of(job, ending), MarkKind.EXIT)}
    asked = {"exits", "exits_with_a_text", "exits_at_once", "handles_sigterm"}
    assert {ending for ending, site in sites.items() if site is not None} == asked


def test_the_end_of_the_main_thread_is_recorded_before_others_are_waited_for(job: jobs.Finished) -> None:
    over = {ending: trace_of(job, ending).finished for ending in STATUSES}
    assert {ending for ending, time in over.items() if time is None} == {"exits_at_once", "is_killed", "is_terminated"}
    trace = trace_of(job, "waits_for_a_thread")
    barrier = operations(trace)[-1]
    assert trace.finished is not None
    assert barrier.entered is not None
    assert trace.exit is not None
    assert trace.exit.time is not None
    assert trace.finished < barrier.entered < trace.exit.time


def test_what_was_done_right_before_sigkill_is_in_the_journal(job: jobs.Finished) -> None:
    last = operations(trace_of(job, "is_killed"))[-1]
    assert (at(last, PROGRAM), last.call.inputs.shapes, last.returned is not None) == ("killed", ((7,),), True)


def test_stacks_at_sigterm_are_kept_unless_the_job_handles_it(job: jobs.Finished) -> None:
    assert f'"{PROGRAM}", line {line_of(PROGRAM, "terminated")} in is_terminated' in stacks(job, "is_terminated")
    others = {ending: stacks(job, ending) for ending in STATUSES if ending != "is_terminated"}
    assert others == dict.fromkeys(others, "")
    modes = {path.stat().st_mode & 0o777 for path in Path(job.folder, "stacks").iterdir()}
    assert modes == {0o600}
