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


WARNINGS = (
    "[rank0]:[W730 15:32:17.347712782 ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was not called "
    "before program exit, which can leak resources. (function operator())",
    "[rank0]:[W403 11:42:02.380967152 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before "
    "we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group (function op())",
)


@pytest.mark.parametrize("warning", WARNINGS)
def test_a_process_that_ends_without_destroying_its_groups_does_not_say_that_the_job_went_well(
    tmp_path: Path, warning: str
) -> None:
    evidence = read(tmp_path, job=[*STEPS, warning, *(f"[rank {rank}] step 320/1000 loss 1.7" for rank in (3, 1, 2))])
    assert interpret(evidence).status is Status.UNKNOWN
    assert any("rank 0 left the program" in note and "step 320/1000" in note for note in evidence.notes)
    alone = read(tmp_path, job=[*STEPS, warning])
    assert interpret(alone).status is Status.UNKNOWN
    assert not any("left the program" in note for note in alone.notes)


@pytest.mark.parametrize("words", ["Training complete", "***** train metrics *****"])
def test_words_of_the_program_say_that_its_work_is_done(tmp_path: Path, words: str) -> None:
    evidence = read(tmp_path, job=[*STEPS, words, WARNINGS[0], "exit code 0"])
    assert interpret(evidence).status is Status.HEALTHY
    assert not any("left the program" in note for note in evidence.notes)


@pytest.mark.parametrize(
    "line",
    [
        "Bus error (core dumped)",
        "./run.sh: line 12: 12345 Segmentation fault      (core dumped) torchrun --nproc-per-node 8 train.py",
        "zsh: segmentation fault (core dumped)  python train.py",
        "Aborted",
    ],
)
def test_a_signal_of_its_own_after_the_work_is_teardown(tmp_path: Path, line: str) -> None:
    finding = only(tmp_path, *STEPS, "Training complete", line, "+ echo exit code 135", "exit code 135")
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.TEARDOWN, ())
    before = only(tmp_path, *STEPS, line, "exit code 135")
    assert (before.status, before.cause, before.certainty) == (Status.CRASH, Cause.KILLED, Certainty.POSSIBLE)
    assert diagnosed(tmp_path, *STEPS, line, "trying again", *STEPS, "Training complete").status is Status.HEALTHY


def test_who_was_killed_after_the_work_may_be_anybody(tmp_path: Path) -> None:
    finding = only(tmp_path, *STEPS, "Training complete", "Killed")
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.UNKNOWN, Cause.UNKNOWN, ())
    helper = "job.sh: line 9: 345 Killed                  nvidia-smi dmon -s u > gpu.csv"
    assert diagnosed(tmp_path, *STEPS, "Training complete", helper).status is Status.HEALTHY
    assert (
        diagnosed(tmp_path, *STEPS, "Killed 3 stale uploads", "the word Killed", "Training complete").status is Status.HEALTHY
    )


@pytest.mark.parametrize("warning", [WARNINGS[0], "giving up"])
@pytest.mark.parametrize(("tasks", "end"), [("tasks 0-3", "Exited with exit code 3"), ("tasks 0,2", "Segmentation fault")])
def test_tasks_that_end_alike_are_a_crash_of_nobody_in_particular(tmp_path: Path, warning: str, tasks: str, end: str) -> None:
    line = f"srun: error: gpu-1: {tasks}: {end}"
    finding = only(tmp_path, *STEPS, warning, line)
    cause = Cause.UNKNOWN if "exit" in end else Cause.KILLED
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, cause, ())
    assert line in finding.evidence
    assert diagnosed(tmp_path, *STEPS, line, *STEPS, "Training complete").status is Status.HEALTHY


def test_a_task_alone_on_its_node_is_not_at_fault_for_what_all_ended_with(tmp_path: Path) -> None:
    lines = ["srun: error: gpu-2: task 3: Exited with exit code 3", "srun: error: gpu-1: tasks 0-2: Exited with exit code 3"]
    finding = only(tmp_path, "world_size=4", *STEPS, *lines)
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.UNKNOWN, ())


def test_what_srun_clears_up_is_no_finding_beside_the_fault(tmp_path: Path) -> None:
    error = [line.replace("monitored_barrier", "all_reduce") for line in raised(2, "no such shard")]
    finding = only(tmp_path, "world_size=4", *error, "srun: error: gpu-1: tasks 0-1,3: Exited with exit code 1")
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (2,))


DEEPSPEED = (
    "{}[2025-05-01 10:30:01,100] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 't.py', '--local_rank=3', "
    "'--deepspeed', 'ds.json'] exits with return code = {}"
)


@pytest.mark.parametrize("host", ["", "node1: "])
@pytest.mark.parametrize(("code", "cause"), [(-9, Cause.KILLED), (-11, Cause.KILLED), (1, Cause.UNKNOWN)])
def test_deepspeeds_launcher_names_a_status_and_no_rank(tmp_path: Path, host: str, code: int, cause: Cause) -> None:
    lines = [
        host + line for line in (*STEPS, "[2025-05-01 10:30:00,0] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 5")
    ]
    finding = only(tmp_path, *lines, DEEPSPEED.format(host, code))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, cause, ())
    assert "local_rank" not in finding.summary


@pytest.mark.parametrize(("code", "name"), [(1, "SIGHUP"), (15, "Signals.SIGTERM")])
def test_a_launcher_that_was_told_to_end_has_no_rank_at_fault(tmp_path: Path, code: int, name: str) -> None:
    head = "W0707 03:00:00.000000 400 torch/distributed/elastic/agent/server/api.py:723] "
    told = f"{head}Received {code if name == 'SIGHUP' else name} death signal, shutting down workers"
    launcher = [
        "Traceback (most recent call last):",
        '  File "/opt/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
        f"torch.distributed.elastic.multiprocessing.api.SignalException: Process 400 got signal: {code}",
    ]
    for lines in ([told, *launcher], launcher, [told]):
        finding = only(tmp_path, *STEPS, *lines)
        assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.KILLED, ())
    interrupted = [told.replace(f"{code if name == 'SIGHUP' else name} death", "2 death"), *launcher[:-1]]
    assert (
        diagnosed(tmp_path, *STEPS, *interrupted, launcher[-1].replace(f"signal: {code}", "signal: 2")).status is Status.UNKNOWN
    )
    cancelled = "slurmstepd: error: *** JOB 9 ON a01 CANCELLED AT 2025-01-10T15:27:25 DUE TO PREEMPTION ***"
    assert diagnosed(tmp_path, *STEPS, cancelled, told).findings == ()
    error = [line.replace("monitored_barrier", "all_reduce") for line in raised(2, "no such shard")]
    assert only(tmp_path, "world_size=4", *error, told).culprit_ranks == (2,)


DESCRIBED = [
    "Name:             llm-worker-1",
    "    Last State:     Terminated",
    "      Reason:       OOMKilled",
    "      Exit Code:    137",
]


@pytest.mark.parametrize(
    "pod",
    [
        DESCRIBED,
        ["      reason: OOMKilled", "      exitCode: 137"],
        ['      "reason": "OOMKilled",'],
        ["llm-worker-1   0/1     OOMKilled   0          5m"],
    ],
)
def test_a_pod_that_was_ended_for_want_of_memory(tmp_path: Path, pod: list[str]) -> None:
    error = (
        "[rank0]:[E1103 11:20:20.567 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog "
        "thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5"
    )
    finding = interpret(read(tmp_path, worker=["world_size=4", *STEPS, error], described=pod)).findings[0]
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.KILLED, ())
    assert "memory of the host" in finding.advice
    well = interpret(read(tmp_path, worker=[*STEPS, "Training complete"], described=pod))
    assert well.status is Status.HEALTHY


def test_a_pod_in_the_words_of_a_program_is_no_finding(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, *STEPS, "pod worker-3 was OOMKilled, retrying", "Training complete").status is Status.HEALTHY


def test_several_ranks_were_ended(tmp_path: Path) -> None:
    finding = only(tmp_path, *STEPS, *box((0, -9, 10), (2, -9, 12)))
    assert finding.summary == "Ranks 0,2 were ended by SIGKILL."


# --- connections


def test_ranks_of_gloo_that_cannot_connect(tmp_path: Path) -> None:
    refused = (
        "Gloo connectFullMesh failed with [../gloo/transport/tcp/device.cc:83] connect [127.0.1.1]:41733: Connection refused"
    )
    finding = only(tmp_path, *raised(0, refused), *raised(1, "Gloo connectFullMesh failed with [../pair.cc:144] no error"))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.RENDEZVOUS, ())
    assert "127.0.1.1" in finding.advice
    assert len(finding.evidence) == 2


def test_who_failed_before_is_why_the_others_could_not_connect(tmp_path: Path) -> None:
    mesh = "Gloo connectFullMesh failed with [../pair.cc:144] no error"
    finding = only(tmp_path, *raised(1, "no such data set"), *raised(0, mesh))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (1,))


def test_nccls_own_line_about_a_connection_that_could_not_be_made(tmp_path: Path) -> None:
    said = "n7:12246:12397 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to {} failed : {}"
    system = "NCCL error in: ../ProcessGroupNCCL.cpp:1275, unhandled system error, NCCL version 2.18.1"
    abort = said.format("fe80::966d:ae03:a2:8cf0%ib1<17903>", "Software caused connection abort")
    lines = [abort, *(line.replace("RuntimeError", "torch.distributed.DistBackendError") for line in raised(None, system))]
    finding = only(tmp_path, *lines, *box((0, 1, 11), (1, 1, 12)))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.COMMUNICATION_STALLED, ())
