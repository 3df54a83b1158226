"""Messages glued to each other, tracebacks of ``@record``, failures of the store, and words at a job's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from desync.cli.explain import explain
from desync.evidence.logs.speakers import MAX_GLUED, Speaker, unglued
from desync.model import Cause, Certainty, Status
from desync.report.model import Report

from . import log_samples as made
from .log_samples import Stuck, timeout_lines
from .test_logs import diagnosed, elastic, only, read, traceback

STEPS = [f"step {step} loss 1.{step}" for step in range(40)]


def explained(folder: Path, *lines: str) -> Report:
    (folder / "job.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return explain([str(folder / "job.log")])


def glued(version: str, ranks: tuple[int, ...], prefix: made.Prefix = made.bare) -> list[str]:
    """The time-outs of ranks whose line feeds came too late: the first lines of all in one line, then the second ones."""
    each = [[f"{prefix(rank)}{line}" for line in timeout_lines(version, Stuck(rank, 100))] for rank in ranks]
    return ["".join(lines) for lines in zip(*each, strict=True)]


@pytest.mark.parametrize("prefix", [made.bare, made.tee(4)])
@pytest.mark.parametrize("version", ["2.1", "2.3", "2.4", "2.9"])
def test_messages_of_several_ranks_on_one_line_are_all_heard(version: str, prefix: made.Prefix) -> None:
    for ranks in ((0, 1, 3), (3, 1, 0)):
        finding = only("\n".join(["world_size=4", *glued(version, ranks, prefix)]))
        assert (finding.status, finding.culprit_ranks) == (Status.HANG, (2,))


def test_a_message_glued_to_a_line_of_python_is_heard_and_what_stands_before_the_first_is_not_cut_off() -> None:
    first = [next(iter(timeout_lines("2.9", Stuck(rank, 100)))) for rank in range(4)]
    python = f'[rank0]:   File "/job/train.py", line 3, in step{first[1]}[rank3]: Traceback (most recent call last):'
    pieces = unglued(Speaker(rank=0), python.removeprefix("[rank0]: "))
    assert [(speaker.rank, text[:12]) for speaker, text in pieces] == [
        (0, '  File "/job'),
        (1, "[E1202 11:25"),
        (3, "Traceback (m"),
    ]
    bar = ["world_size=4", f"step 5: loss=2.1{first[0]}", f"{python[:40]}{first[1]}", f"[default3]:step 5 {first[3]}"]
    assert only("\n".join(bar)).culprit_ranks == (2,)


def test_a_line_of_endless_messages_is_cut_into_a_bounded_number() -> None:
    line = "[E a.cpp:1] x[rank1]:" * 3000
    pieces = unglued(Speaker(rank=0), line)
    assert len(pieces) == MAX_GLUED
    assert "".join(text for _, text in unglued(Speaker(), "[E a.cpp:1] x[E b.cpp:2] y")) == "[E a.cpp:1] x[E b.cpp:2] y"


def test_a_quotation_is_not_heard_because_it_is_cut() -> None:
    line = next(iter(timeout_lines("2.9", Stuck(3, 100))))
    for quoted in (f"{{'prompt': 'Why?\\n{line}\\nRoot'}}", f"{{'prompt': 'Why?\\n{line}', 'more': 'x{line}'}}"):
        assert not read("\n".join([quoted, *STEPS])).facts.timeouts


def recorded(*entries: tuple[int, list[str]]) -> list[str]:
    """torchelastic's summary with the tracebacks of ranks whose main function has ``@record``."""
    lines = elastic([(rank, 1) for rank, _ in entries])
    for rank, own in entries:
        at = next(index for index, line in enumerate(lines) if f"rank      : {rank} " in line) + 2
        lines[at : at + 1] = [
            "  error_file: /tmp/torchelastic/error.json",
            f"  traceback : {own[0]}",
            *(f"  {x}" for x in own[1:]),
            "  ",
        ]
    return lines


def test_the_traceback_in_the_summary_is_read() -> None:
    own = [*traceback(None, "KeyError: 'zebra'"), ""]
    own[2:2] = [
        line for frame in range(40) for line in (f'  File "/job/model.py", line {frame}, in layer{frame}', "    x = f(x)")
    ]
    text = "\n".join(["world_size=4", *recorded((3, own))])
    finding = only(text)
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (3,))
    assert "zebra" in finding.summary
    (trace,) = [each for each in diagnosed(text)[1].traces if each.rank == 3]
    failure = trace.marks[0].failure
    assert failure is not None
    assert len(failure.frames) == 41


def test_of_several_entries_each_has_its_own_traceback() -> None:
    closed = traceback(None, "torch.distributed.DistNetworkError: Connection closed by peer")
    finding = only("\n".join(["world_size=4", *recorded((0, closed), (2, traceback(None, "ValueError: two")), (1, closed))]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (2,))


@pytest.mark.parametrize("printed", [3, None])
def test_a_traceback_that_the_rank_has_printed_as_well_is_told_once(printed: int | None) -> None:
    own = traceback(None, "KeyError: 'zebra'")
    text = "\n".join(["world_size=4", *traceback(printed, "KeyError: 'zebra'"), *recorded((3, own))])
    assert only(text).culprit_ranks == (3,)
    assert [each.speaker.rank for each in read(text).facts.tracebacks if not each.launcher] == [3]


def test_a_summary_that_is_cut_inside_of_a_traceback_swallows_nothing_behind_it() -> None:
    cut = recorded((3, ["Traceback (most recent call last):", '  File "/job/a.py", line 1, in main']))
    cut = [*cut[: next(index for index, line in enumerate(cut) if "a.py" in line) + 1], *traceback(1, "KeyError: 'x'")]
    assert any(each.speaker.rank == 1 and each.type == "KeyError" for each in read("\n".join(cut)).facts.tracebacks)
    endless = recorded(
        (3, ["Traceback (most recent call last):", *(f'  File "/job/a.py", line {x}, in f' for x in range(9000))])
    )
    assert len(read("\n".join(endless)).facts.tracebacks[0].frames) <= 200


LISTEN = "The server socket has failed to listen on any local network address."
PORTS = {
    "2.0": f"RuntimeError: {LISTEN} The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
    "2.6": f"torch.distributed.DistNetworkError: {LISTEN} port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
    "address already in use",
}


@pytest.mark.parametrize("rank", [0, None])
@pytest.mark.parametrize("version", PORTS)
def test_a_port_that_is_taken_is_a_matter_of_the_rendezvous(version: str, rank: int | None) -> None:
    head = "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
    finding = only("\n".join([head, *traceback(rank, PORTS[version]), *elastic([(0, 1), (1, -15)])]))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.RENDEZVOUS, ())
    assert "another job" in finding.advice
    assert "another port" in finding.advice


def test_another_reason_not_to_listen_and_another_server_are_told_apart_from_it() -> None:
    refused = f"RuntimeError: {LISTEN} The server socket has failed to bind to 0.0.0.0:80 (errno: 13 - Permission denied)."
    finding = only("\n".join(traceback(0, refused)))
    assert (finding.cause, "another job" in finding.advice) == (Cause.RENDEZVOUS, False)
    other = only("\n".join(["world_size=2", *traceback(0, "OSError: [Errno 98] Address already in use")]))
    assert (other.cause, other.culprit_ranks) == (Cause.EXCEPTION, (0,))
    caught = [*traceback(None, PORTS["2.6"]), "next port: 29501", *STEPS, "training complete"]
    assert diagnosed("\n".join(["world_size=2", *caught]))[0].findings == ()


def unique_id(waits: int, key: str = "0", error: str = "wait timeout after 600000ms", verb: str = "retrieving") -> str:
    return (
        f"torch.distributed.DistBackendError: [{waits}] is setting up NCCL communicator and {verb} ncclUniqueId from [0] via "
        f"c10d key-value store by key '{key}', but store->get('{key}') got error: {error}, keys: /default_pg/0//cuda//{key}"
    )


@pytest.mark.parametrize("error", [unique_id(1), unique_id(1, error="Socket Timeout", verb="retreiving")])
def test_who_did_not_write_the_unique_id_is_awaited(error: str) -> None:
    parts = [(rank, traceback(rank, error.replace("[1]", f"[{rank}]"))) for rank in (1, 2, 3)]
    finding = only(made.log(parts, world=4))
    assert (finding.status, finding.culprit_ranks, finding.certainty) == (Status.HANG, (0,), Certainty.POSSIBLE)
    assert only("\n".join([made.log(parts, world=4), *elastic([(1, 1), (0, -15), (2, 1), (3, 1)])])).culprit_ranks == (0,)


def test_the_unique_id_of_a_smaller_group_or_of_a_pair_blames_no_other_rank() -> None:
    group = made.log([(rank, traceback(rank, unique_id(rank - 4))) for rank in (5, 6, 7)], world=8)
    assert all(not finding.culprit_ranks for finding in diagnosed(group)[0].findings)
    # For a send and its recv torch writes [0] as well; the key has the two, and the first of them writes.
    assert only(made.log([(3, traceback(3, unique_id(3, "2:3")))], world=4)).culprit_ranks == (2,)
    chain = [(3, traceback(3, unique_id(3, "2:3"))), (2, traceback(2, unique_id(2, "1:2")))]
    assert only(made.log(chain, world=4)).culprit_ranks == (1,)


def test_who_failed_itself_and_who_came_elsewhere_is_not_merely_awaited() -> None:
    others = [(rank, traceback(rank, unique_id(rank))) for rank in (1, 2, 3)]
    raised = only(made.log([(0, traceback(0, "KeyError: 'x'")), *others], world=4))
    assert (raised.cause, raised.culprit_ranks) == (Cause.EXCEPTION, (0,))
    gone = "torch.distributed.DistNetworkError: Connection reset by peer"
    assert only(made.log([(0, traceback(0, gone)), *others], world=4)).culprit_ranks == ()
    assert only(made.log([(1, traceback(1, unique_id(1, error="Broken pipe")))], world=4)).culprit_ranks == ()


ENDS = (
    "`Trainer.fit` stopped: `max_epochs=3` reached.",
    "INFO:lightning:`Trainer.fit` stopped: `max_steps=1000` reached.",
    "{'train_runtime': 812.1, 'train_samples_per_second': 10.0, 'epoch': 1.0}",
    "  train_runtime            = 0:13:32.10",
)


@pytest.mark.parametrize("end", ENDS)
def test_the_words_of_trainers_at_the_end_of_the_work_are_known(end: str, tmp_path: Path) -> None:
    report = explained(tmp_path, "distributed_backend=nccl world_size=2", *STEPS, end, "Model saved to out/")
    assert (report.verdict.status, report.findings) == (Status.HEALTHY, ())
    caught = [*traceback(None, "urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out."), "attempt 2: done"]
    assert explained(tmp_path, *STEPS, *caught, "Epoch 2: 100%", end).verdict.status is Status.HEALTHY
    # What comes after it, or an exception of its own before it, is no good end.
    assert only("\n".join(["world_size=4", *traceback(2, "KeyError: 'x'"), end])).culprit_ranks == (2,)
    late = [line for rank in (0, 1, 3) for line in timeout_lines("2.9", Stuck(rank, 100))]
    assert only("\n".join(["world_size=4", *STEPS, end, *late])).culprit_ranks == (2,)


def test_an_exception_of_torchs_own_before_the_words_of_the_end_leaves_it_open(tmp_path: Path) -> None:
    inside = traceback(None, "RuntimeError: Connection reset by peer")
    inside[2:2] = ['  File "/env/torch/distributed/distributed_c10d.py", line 1, in all_reduce', "    work.wait()"]
    assert explained(tmp_path, *STEPS, *inside, "more", ENDS[0]).verdict.status is Status.UNKNOWN


@pytest.mark.parametrize(
    "why",
    [
        " DUE TO TIME LIMIT",
        " DUE TO PREEMPTION",
        " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
        " DUE to SIGNAL Killed",
        "",
    ],
)
def test_the_schedulers_word_is_quoted_where_nothing_else_is_found(why: str, tmp_path: Path) -> None:
    word = f"*** STEP 123.0 ON n4 CANCELLED AT 2025-01-01T00:00:00{why} ***"
    tail = [
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: error: n4: tasks 0-7: Terminated",
    ]
    report = explained(tmp_path, *STEPS, f"slurmstepd: error: {word}", *tail)
    assert (report.verdict.status, report.findings) == (Status.UNKNOWN, ())
    assert word in report.verdict.summary
    done = explained(tmp_path, *STEPS, ENDS[0], f"slurmstepd: error: {word}", *tail)
    assert word in done.verdict.summary
    assert "max_epochs=3" in done.verdict.summary
    beside = explained(tmp_path, f"slurmstepd: error: {word}", *STEPS, ENDS[0])
    assert (beside.verdict.status, word in beside.verdict.summary) == (Status.HEALTHY, False)
    stuck = [line for rank in (0, 1, 3) for line in timeout_lines("2.9", Stuck(rank, 100))]
    assert explained(tmp_path, "world_size=4", *stuck, f"slurmstepd: error: {word}").verdict.culprit_ranks == (2,)


def test_the_order_of_lines_is_no_time(tmp_path: Path) -> None:
    report = explained(tmp_path, "world_size=4", *traceback(2, "KeyError: 'x'"))
    assert report.findings
    assert report.timing.diverged_at is None
    assert all(finding.time is None for finding in report.findings)
    stuck = [line for rank in (0, 1, 3) for line in timeout_lines("2.9", Stuck(rank, 100))]
    timed = explained(tmp_path, "2025-12-02 11:00:00 start", "world_size=4", *stuck)
    assert timed.timing.diverged_at is not None
    assert timed.timing.diverged_at.startswith("2025-12-02")
