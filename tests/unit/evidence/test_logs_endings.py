"""Ends that launchers, shells and schedulers tell of, and whose doing they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from desync.diagnosis.claims import interpret
from desync.evidence.mixture import gather
from desync.evidence.sources import find
from desync.model import Cause, Certainty, Diagnosis, Evidence, Finding, Status

STEPS = [f"step={each:06} loss=2.7 lr=2.9e-04" for each in range(0, 200, 20)]


def read(tmp_path: Path, **logs: list[str]) -> Evidence:
    for name, lines in logs.items():
        (tmp_path / f"{name}.log").write_text("\n".join(lines) + "\n")
    return gather(find([str(tmp_path)]))


def diagnosed(tmp_path: Path, *lines: str) -> Diagnosis:
    return interpret(read(tmp_path, job=list(lines)))


def only(tmp_path: Path, *lines: str) -> Finding:
    found = diagnosed(tmp_path, *lines).findings
    assert len(found) == 1, found
    return found[0]


def raised(rank: int | None, message: str) -> list[str]:
    """A traceback out of torch, each line with its rank where that is given."""
    lines = ["Traceback (most recent call last):", '  File "/ws/train.py", line 10, in main', "    dist.monitored_barrier()"]
    in_front = f"[rank{rank}]: " if rank is not None else ""
    return [in_front + line for line in (*lines, f"RuntimeError: {message}")]


def box(*entries: tuple[int, int, int], second: int = 12) -> list[str]:
    """torchelastic's summary of (rank, code, pid), the first of which is the root cause."""
    lines = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 20, "train.py FAILED", "-" * 20]
    for index, (rank, code, pid) in enumerate((*entries[1:], entries[0])):
        lines += ["Failures:"] if index == 0 and len(entries) > 1 else []
        lines += ["-" * 20, "Root Cause (first observed failure):"] if index == len(entries) - 1 else []
        lines += [
            "[0]:",
            f"  time      : 2026-11-30_21:39:{second}",
            "  host      : node",
            f"  rank      : {rank} (local_rank: {rank})",
        ]
        lines += [f"  exitcode  : {code} (pid: {pid})", "  error_file: <N/A>"]
    return [*lines, "=" * 20]


LAUNCHERS = (
    ("W1130 21:39:42.760000 900 torch/distributed/elastic/multiprocessing/api.py:1028] ", "15", "9"),
    ("WARNING:torch.distributed.elastic.multiprocessing.api:", "Signals.SIGTERM", "Signals.SIGKILL"),
    ("[2024-01-02 10:00:00,1] torch.distributed.elastic.multiprocessing.api: [WARNING] ", "Signals.SIGTERM", "Signals.SIGKILL"),
)
REACHED = "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
MISSED = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 4000 ms"


def barrier(prefixed: bool) -> list[str]:
    words = {1: REACHED.format(1), 3: REACHED.format(3), 0: MISSED}
    return ["world_size=4", *(line for rank, said in words.items() for line in raised(rank if prefixed else None, said))]


@pytest.mark.parametrize("prefixed", [True, False])
@pytest.mark.parametrize("with_box", [True, False])
def test_who_reached_the_barrier_is_not_at_fault_because_the_launcher_saw_its_end_first(
    tmp_path: Path, prefixed: bool, with_box: bool
) -> None:
    head = LAUNCHERS[0][0]
    closing = [f"{head}Sending process {pid} closing signal SIGTERM" for pid in (10, 12, 13)]
    ended = f"{head}failed (exitcode: 1) local_rank: 1 (pid: 11) of binary: /usr/bin/python3"
    summary = box((1, 1, 11), (0, -15, 10), (2, -15, 12), (3, -15, 13)) if with_box else []
    finding = only(tmp_path, *barrier(prefixed), *closing, ended, *summary)
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.STALLED_RANK, (2,))


def test_a_rank_that_left_no_word_before_a_barrier_is_still_told_of(tmp_path: Path) -> None:
    lines = ["world_size=4", f"{LAUNCHERS[0][0]}failed (exitcode: 1) local_rank: 2 (pid: 11) of binary: /usr/bin/python3"]
    found = diagnosed(tmp_path, *lines, *box((2, 1, 11)))
    assert [each.culprit_ranks for each in found.findings] == [(2,)]


@pytest.mark.parametrize(("head", "first", "second"), LAUNCHERS)
@pytest.mark.parametrize("code", [-9, -11, 1])
def test_whom_the_launcher_ended_is_not_at_fault(tmp_path: Path, head: str, first: str, second: str, code: int) -> None:
    lines = [f"{head}Sending process {pid} closing signal SIGTERM" for pid in (11, 12)]
    lines += [f"{head}Unable to shutdown process 12 via {first}, forcefully exiting via {second}"] if code == -9 else []
    lines += [f"{head}failed (exitcode: -9) local_rank: 0 (pid: 10) of binary: /usr/bin/python3"]
    finding = only(tmp_path, *STEPS, *lines, *box((0, -9, 10), (1, -15, 11), (2, code, 12)))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.KILLED, (0,), Certainty.PROVEN)


def test_the_line_of_the_last_signal_is_enough(tmp_path: Path) -> None:
    forced = f"{LAUNCHERS[1][0]}Unable to shutdown process 12 via Signals.SIGTERM, forcefully exitting via Signals.SIGKILL"
    finding = only(tmp_path, *STEPS, forced, *box((0, -9, 10), (2, -9, 12)))
    assert finding.culprit_ranks == (0,)
