"""Logs in which the rank is in doubt, the error is a victim's, or the words at the end are the script's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from desync.diagnosis.claims import interpret
from desync.errors import EvidenceError
from desync.evidence.logs.assemble import assemble
from desync.evidence.logs.facts import Facts, Timeout
from desync.evidence.logs.speakers import Speaker
from desync.evidence.mixture import gather
from desync.evidence.sources import find
from desync.model import Cause, Certainty, Diagnosis, Finding, Status

from .log_samples import Stuck, head, timeout_lines

HEAD = ["world_size=4 backend=nccl torch=2.7.1+cu121", *(f"step {each} loss 2" for each in range(20))]
RAISED = ["Traceback (most recent call last):", '  File "/ws/train.py", line 10, in main', "    x = y[3]", "IndexError: list"]
IN_TORCH = '  File "/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2700, in all_reduce'


def timed_out(*ranks: int, version: str = "2.6") -> list[str]:
    return [line for rank in ranks for line in timeout_lines(version, Stuck(rank, 100))]


def diagnosed(tmp_path: Path, **logs: list[str]) -> Diagnosis:
    for name, lines in logs.items():
        (tmp_path / f"{name}.log").write_text("\n".join(lines) + "\n")
    return interpret(gather(find([str(tmp_path)])))


def first(tmp_path: Path, lines: list[str]) -> Finding:
    return diagnosed(tmp_path, job=lines).findings[0]


def says(prefix: str, lines: list[str]) -> list[str]:
    return [prefix + line for line in lines]


ABORTED = "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0."
CLOSED = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234"
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 18ms for recv operation"


def test_a_rank_that_failed_as_a_victim_is_not_the_one_that_did_not_come(tmp_path: Path) -> None:
    victim = says("[rank0]: ", [*RAISED[:2], IN_TORCH, ABORTED])
    assert first(tmp_path, [*HEAD, *timed_out(1, 3), *victim]).culprit_ranks == (2,)


def test_the_same_with_gloo(tmp_path: Path) -> None:
    lines = [line for rank, error in ((1, GLOO), (3, GLOO), (0, CLOSED))
             for line in says(f"[rank{rank}]: ", [*RAISED[:2], IN_TORCH, error])]  # fmt: skip
    assert first(tmp_path, [*HEAD, *lines]).culprit_ranks == (2,)


def test_a_connection_to_something_else_does_not_make_a_rank_a_victim_of_others(tmp_path: Path) -> None:
    own = says("[rank2]: ", [*RAISED[:2], "ConnectionError: Connection refused by the server of the data"])
    assert first(tmp_path, [*HEAD, *timed_out(0, 1, 3), *own]).culprit_ranks == (2,)


OTHERS = timed_out(*(rank for rank in range(16) if rank != 11))
SIXTEEN = ["world_size=16 backend=nccl torch=2.7.1", *HEAD[1:]]
KILLED = "E1202 10:58:00.0 9 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 3 (pid: 2)"
OUT_OF_MEMORY = [*RAISED[:3], "torch.cuda.OutOfMemoryError: CUDA out of memory. GPU 3 has a total capacity of 79.15 GiB"]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([*says("1: [default3]:", RAISED)], Cause.EXCEPTION),
        ([*says("[default3]:", RAISED)], Cause.EXCEPTION),
        ([*says("1: ", RAISED)], Cause.EXCEPTION),
        (OUT_OF_MEMORY, Cause.OUT_OF_MEMORY),
        ([*says("[default3]:", RAISED), *OTHERS], Cause.EXCEPTION),
        ([KILLED], Cause.KILLED),
        (["srun: error: node1: task 1: Out Of Memory"], Cause.NONE),
    ],
)
def test_what_counts_nodes_or_local_ranks_names_no_rank(tmp_path: Path, lines: list[str], cause: Cause) -> None:
    found = diagnosed(tmp_path, job=[*SIXTEEN, *lines]).findings
    assert [(each.cause, each.culprit_ranks) for each in found[:1]] == ([(cause, ())] if cause is not Cause.NONE else [])


def test_files_of_nodes_name_no_rank(tmp_path: Path) -> None:
    waits = [line for rank in range(3) for line in says(f"[default{rank % 2}]:", timed_out(rank))]
    found = diagnosed(tmp_path, **{"worker-0": [*HEAD, *waits], "worker-1": [*HEAD, *says("[default1]:", RAISED)]})
    assert (found.findings[0].cause, found.findings[0].culprit_ranks) == (Cause.EXCEPTION, ())


def test_files_of_nodes_of_old_torch_leave_the_rank_to_the_message(tmp_path: Path) -> None:
    old = {"node-0": [*HEAD, *timed_out(0, 1, version="2.0")], "node-1": [*HEAD, *timed_out(2, version="2.0")]}
    assert diagnosed(tmp_path, **old).findings[0].culprit_ranks == (3,)


def test_files_counted_from_one_name_no_rank_but_the_only_silent_one_may_be_it(tmp_path: Path) -> None:
    waits = {f"train.{rank + 1}": [*HEAD, *timed_out(rank, version="2.0")] for rank in (0, 1, 3)}
    finding = diagnosed(tmp_path, **waits, **{"train.3": [*HEAD, *RAISED]}).findings[0]
    assert (finding.certainty, finding.culprit_ranks) == (Certainty.POSSIBLE, (2,))
    (tmp_path / "train.4.log").unlink()  # then two are silent
    assert interpret(gather(find([str(tmp_path)]))).findings[0].culprit_ranks == ()


def test_as_many_files_as_ranks_are_the_ranks(tmp_path: Path) -> None:
    waits = {f"train.{rank}": [*HEAD, *timed_out(rank, version="2.0")] for rank in (0, 1, 3)}
    assert diagnosed(tmp_path, **waits, **{"train.2": [*HEAD, *RAISED]}).findings[0].culprit_ranks == (2,)


@pytest.mark.parametrize("prefix", ["{}: ", " {}: "])
def test_as_many_tasks_as_ranks_are_the_ranks(tmp_path: Path, prefix: str) -> None:
    steps = [prefix.format(rank) + "step 1 loss 2" for rank in range(4)] * 20
    assert first(tmp_path, [*steps, *says(prefix.format(2), RAISED)]).culprit_ranks == (2,)


@pytest.mark.parametrize("words", ["Job finished at Mon", "All done", "Training finished", "==== Job completed: 0 ===="])
@pytest.mark.parametrize("between", [[], ["srun: error: node1: task 0: Aborted"], ["frame #9: x + 0x1 (0x7 in libc)"] * 14])
def test_words_of_the_script_behind_a_failure_do_not_end_it_well(tmp_path: Path, words: str, between: list[str]) -> None:
    assert first(tmp_path, [*HEAD, *timed_out(0, 1, 3), *between, words]).status is Status.HANG


def test_stack_frames_behind_an_error_are_no_sign_of_going_on(tmp_path: Path) -> None:
    lines = [line for line in timed_out(0, 1, 3) if "taking the entire" not in line and "terminate" not in line]
    frames = ["frame #9: x + 0x1 (0x7 in libc)", "srun: error: node1: task 0: Aborted"] * 10
    assert first(tmp_path, [*HEAD, *lines, *frames, "All done"]).status is Status.HANG


def test_after_enough_lines_of_its_own_the_job_went_on(tmp_path: Path) -> None:
    lines = [line for line in timed_out(0) if "taking the entire" not in line and "terminate" not in line]
    assert diagnosed(tmp_path, job=[*HEAD, *lines, *HEAD, "Training finished"]).status is Status.HEALTHY


def test_control_c_is_no_fault_of_the_program(tmp_path: Path) -> None:
    stopped = [line for rank in range(4) for line in says(f"[rank{rank}]: ", [*RAISED[:3], "KeyboardInterrupt"])]
    finding = first(tmp_path, [*HEAD, *stopped])
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.UNKNOWN, Cause.UNKNOWN, ())
    assert "Ctrl-C" in finding.summary


def test_an_interrupted_rank_may_still_be_the_one_that_did_not_come(tmp_path: Path) -> None:
    away = says("[rank2]: ", [*RAISED[:3], "KeyboardInterrupt"])
    assert first(tmp_path, [*HEAD, *timed_out(0, 1, 3), *away]).culprit_ranks == (2,)


@pytest.mark.parametrize("last", ["SystemExit", "SystemExit: 0"])
def test_leaving_without_a_status_is_no_error(tmp_path: Path, last: str) -> None:
    assert not diagnosed(tmp_path, job=[*HEAD, *says("[rank2]: ", [*RAISED[:3], last])]).findings


def test_leaving_with_a_status_is(tmp_path: Path) -> None:
    assert first(tmp_path, [*HEAD, *says("[rank2]: ", [*RAISED[:3], "SystemExit: 1"])]).cause is Cause.EXCEPTION


@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
def test_a_traceback_after_which_work_went_on_was_caught(tmp_path: Path, prefix: str) -> None:
    early = says(prefix, ["upload failed", *RAISED, *(f"step {each} loss 2" for each in range(30))])
    finding = first(tmp_path, [*HEAD, *early, *timed_out(0, 1, 3)])
    assert (finding.status, finding.culprit_ranks) == (Status.HANG, (2,))


def test_lines_of_others_do_not_make_a_traceback_a_caught_one(tmp_path: Path) -> None:
    others = [f"[rank{rank}]: step {each}" for each in range(9) for rank in (0, 1, 3)]
    finding = first(tmp_path, [*HEAD, *says("[rank2]: ", RAISED), *others, *timed_out(0, 1, 3)])
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (2,))


@pytest.mark.parametrize("last", ["cv2.error: OpenCV(4.8.0) bad", "struct.error: unpack", "socket.gaierror: [Errno -2] Name"])
def test_exceptions_in_small_letters_are_exceptions(tmp_path: Path, last: str) -> None:
    finding = first(tmp_path, [*HEAD, *says("[rank2]: ", [*RAISED[:3], last, "Saving: checkpoint"])])
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (2,))
    assert last.partition(": ")[2] in finding.summary


@pytest.mark.parametrize("line", ["Epoch: 3", "Done", "Saving"])
def test_a_line_of_another_rank_inside_a_traceback_is_no_exception(tmp_path: Path, line: str) -> None:
    finding = first(tmp_path, [*HEAD, *RAISED[:3], line, RAISED[3]])
    assert "IndexError: list" in finding.summary


REACHED = "successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
IN_BARRIER = ["[E ProcessGroupGloo.cpp:138] [Rank 0]: Rank 2 failed to pass monitoredBarrier in 30000 ms"] + [
    f"[E ProcessGroupGloo.cpp:138] Rank {rank} {REACHED}" for rank in (1, 3)
]


def test_a_barrier_of_a_smaller_group_names_nobody_outside_of_it(tmp_path: Path) -> None:
    assert first(tmp_path, ["world_size=8 backend=gloo", *IN_BARRIER]).culprit_ranks == (2,)


def test_ranks_below_the_first_absent_one_have_answered_and_those_above_are_open(tmp_path: Path) -> None:
    listed = "[E ProcessGroupGloo.cpp:67] [Rank 0]: Rank 4 failed to pass monitoredBarrier in 30000 ms"
    finding = first(tmp_path, ["world_size=8 backend=gloo", listed, *IN_BARRIER[2:], IN_BARRIER[2].replace("Rank 3", "Rank 7")])
    assert finding.culprit_ranks == (4,)
    assert any("ascending order" in line for line in finding.evidence)


def test_its_ranks_are_turned_into_those_of_the_job(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]:{line}" for rank, line in zip((4, 5, 7), IN_BARRIER, strict=True)]
    assert first(tmp_path, ["world_size=8 backend=gloo", *lines]).culprit_ranks == (6,)


def stack(pid: int) -> list[str]:
    head = [f"Process {pid}: python train.py", "Python v3.11.7 (/usr/bin/python3.11)", ""]
    return [*head, f'Thread {pid} (idle): "MainThread"', *STACK]


STACK = ["    all_reduce (torch/distributed/distributed_c10d.py:2700)", "    train (train.py:40)"]


@pytest.mark.parametrize("names", ["pyspy-{pid}", "pyspy_node{rank}_20251202"])
def test_processes_and_dates_in_names_of_stacks_are_no_ranks(tmp_path: Path, names: str) -> None:
    for rank in range(2):
        name = names.format(pid=4000 + rank, rank=rank)
        (tmp_path / f"{name}.txt").write_text("\n".join(stack(4000 + rank)))
    with pytest.raises(EvidenceError, match="which rank it is cannot be told"):
        gather(find([str(tmp_path)]))


def test_two_stacks_of_one_rank_are_told_of(tmp_path: Path) -> None:
    for hour in ("a", "b"):
        (tmp_path / f"{hour}-rank1.txt").write_text("\n".join(stack(4000)))
    assert any("both speak for rank 1" in note for note in gather(find([str(tmp_path)])).notes)


def test_with_a_launcher_on_each_node_tasks_are_nodes(tmp_path: Path) -> None:
    launch = "0: W1202 10:00:00.0 9 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable"
    assert first(tmp_path, [launch, *says("1: ", RAISED)]).culprit_ranks == ()


def test_one_digit_labels_are_no_hosts_of_pdsh(tmp_path: Path) -> None:
    lines = [*(f"{rank}: step {each}" for each in range(20) for rank in range(4)), *says("2: ", RAISED)]
    assert first(tmp_path, [*lines, *(f"{rank}: {line}" for rank in (0, 1, 3) for line in timed_out(rank))]).culprit_ranks == (
        2,
    )


def signalled(rank: int, what: str, count: int) -> str:
    counted = f"Last enqueued NCCL work: {count}, last completed NCCL work: 99."
    where = f"[rank{rank}]:[E1202 10:57:02.000000000 ProcessGroupNCCL.cpp:1282] [PG 0 Rank {rank}]"
    return f"{where} Received a {what} and will start to dump the debug info. {counted}"


def test_the_dump_signals_of_torch_2_3_tell_how_far_ranks_came(tmp_path: Path) -> None:
    own, other = "timeout signal from this local rank", "global timeout from another rank"
    signals = [signalled(2, other, 99), *(signalled(rank, own, 100) for rank in (0, 1, 3))]
    finding = first(tmp_path, [*HEAD, *signals, *timed_out(0, 1, 3)])
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (2,))


@pytest.mark.parametrize(
    "prefix", ["[prterun-gpu1-123@1,{}]<stderr>: ", "[2025-12-02 10:00:00] [rank{}]: ", "2025-12-02T10:00:00.123Z\t[rank{}]: "]
)
def test_more_of_what_stands_in_front_of_lines(tmp_path: Path, prefix: str) -> None:
    waits = [line for rank in (0, 1, 3) for line in says(prefix.format(rank), timed_out(rank))]
    assert first(tmp_path, [*HEAD, *waits, *says(prefix.format(2), RAISED)]).culprit_ranks == (2,)


HIP = (
    "[rank2]:[E1202 10:57:02.0 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0(default_pg) Rank 2] HIP error: an illegal address"
)


@pytest.mark.parametrize(
    ("line", "cause", "culprit"),
    [
        (HIP, Cause.EXCEPTION, 2),
        ("srun: error: node1: task 2: Segmentation fault (core dumped)", Cause.KILLED, 2),
        ("srun: error: node1: task 2: Exited with exit code 1", Cause.UNKNOWN, 2),
        ("mpirun noticed that process rank 2 with PID 12 on node gpu1 exited on signal 9 (Killed).", Cause.KILLED, 2),
    ],
)
def test_more_ways_of_telling_of_an_end(tmp_path: Path, line: str, cause: Cause, culprit: int) -> None:
    after = [*timed_out(0, 1, 3)] if "exit code" not in line else ["srun: error: node1: tasks 0-1,3: Terminated"]
    finding = first(tmp_path, [*HEAD, line, *after])
    assert (finding.cause, finding.culprit_ranks) == (cause, (culprit,))


def test_clean_up_by_srun_is_no_end_of_its_own(tmp_path: Path) -> None:
    after = [f"srun: error: node1: task {rank}: Aborted (core dumped)" for rank in (0, 1, 3)]
    finding = first(tmp_path, [*HEAD, *timed_out(0, 1, 3), *after])
    assert (finding.status, finding.culprit_ranks) == (Status.HANG, (2,))


def seconds(tmp_path: Path, lines: list[str]) -> float:
    started = time.process_time()
    diagnosed(tmp_path, job=lines)
    return time.process_time() - started


def test_repeated_words_of_nccl_take_no_more_than_their_length(tmp_path: Path) -> None:
    assert seconds(tmp_path, ["NCCL WARN " * 6500] * 10) < 3


def test_ranks_that_wait_for_each_other_for_long_take_no_more_than_their_lines(tmp_path: Path) -> None:
    key = "key: store_based_barrier_key:1 (world_size=1025, worker_count=1024, timeout=0:30:00)"
    waits = [f"[rank{each % 1024}]: Waiting in store based barrier to initialize process group for rank: {each % 1024}, {key}"
             for each in range(10_000)]  # fmt: skip
    assert seconds(tmp_path, waits) < 5


def test_many_time_outs_of_one_rank_take_no_more_than_their_number() -> None:
    def late(number: int) -> Timeout:
        return Timeout(Speaker(rank=0), number, None, 0, None, number, "ALLREDUCE", (number, number), 10, 11)

    started = time.process_time()
    found = assemble(Facts(timeouts=[late(number) for number in range(1, 30_000)]))
    assert len(found.traces[0].operations) == 29_999
    assert time.process_time() - started < 10


def met(one: int, many: int, elements: int = 25_000_000) -> list[str]:
    """Ranks of which so many are in an all_reduce of one element, and the others in one of a bucket."""
    stuck = [Stuck(rank, 100, elements=1 if rank < one else elements) for rank in range(one + many)]
    return [line for each in stuck for line in timeout_lines("2.6", each)]


def test_a_barrier_that_met_a_bucket_is_another_call_and_no_other_argument(tmp_path: Path) -> None:
    finding = first(tmp_path, [*HEAD, *met(1, 3)])
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.SKIPPED_COLLECTIVE, (0,), Certainty.POSSIBLE)
    assert "equal" not in finding.advice


def test_a_bucket_that_met_a_barrier_as_well(tmp_path: Path) -> None:
    finding = first(tmp_path, [*HEAD, *met(3, 1)])
    assert (finding.cause, finding.culprit_ranks) == (Cause.RANK_ONLY_COLLECTIVE, (3,))


def test_sizes_of_one_kind_of_call_may_be_arguments(tmp_path: Path) -> None:
    finding = first(tmp_path, [*HEAD, *met(1, 3, elements=8)])
    assert finding.cause is Cause.ARGUMENT_MISMATCH


def test_what_the_rank_in_the_barrier_raised_before_is_told(tmp_path: Path) -> None:
    finding = first(tmp_path, [*HEAD, *says("[rank0]: ", RAISED), *met(1, 3)])
    assert finding.cause is Cause.SKIPPED_COLLECTIVE
    assert "rank 0 raised IndexError: list at train.py:10 in main and went on" in finding.evidence


SESSION = ["=========== test session starts ===========", "collected 2 items", "tests/test_words.py::test_log "]


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("===== 12 passed in 3.11s =====", Status.HEALTHY),
        ("===== 12 passed, 2 warnings in 0.41s =====", Status.HEALTHY),
        ("===== 1 failed, 11 passed in 3.11s =====", Status.HANG),
    ],
)
def test_what_a_test_prints_is_no_finding_where_all_tests_passed(tmp_path: Path, end: str, status: Status) -> None:
    lines = [*SESSION, *(f"INFO     words: {line}" for line in met(0, 1)), "PASSED", end]
    assert diagnosed(tmp_path, job=lines).status is status


def test_tests_that_passed_before_a_job_do_not_make_it_a_healthy_one(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, job=[*SESSION, "===== 12 passed in 3.11s =====", *met(0, 1)]).status is Status.HANG


LOGGED = "ERROR 11-02 09:01:00 [executor.py:527] "
OUT_OF_MEMORY = [*RAISED[:3], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB."]


@pytest.mark.parametrize(
    ("worker", "ranks"), [("VllmWorker rank=1", (1,)), ("Worker_TP1", (1,)), ("Worker_TP1_EP1", (1,)), ("Worker_PP1_TP0", ())]
)
def test_a_worker_of_vllm_writes_its_head_before_every_line(tmp_path: Path, worker: str, ranks: tuple[int, ...]) -> None:
    parents = [*RAISED[:3], "RuntimeError: Worker failed with error 'CUDA out of memory.', please check the stack trace above"]
    mine = says(f"({worker} pid=241) {LOGGED}", OUT_OF_MEMORY)
    finding = first(tmp_path, [*mine, *says(f"(EngineCore_DP0 pid=9) {LOGGED}", parents), *says(LOGGED, parents)])
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.OUT_OF_MEMORY, ranks)


@pytest.mark.parametrize("node", ["node_id=ab2, ", ""])
def test_rays_list_says_which_process_is_which_rank(tmp_path: Path, node: str) -> None:
    listed = [f"(Trainer pid=7) - ({node}ip=10.0.3.{rank // 2}, pid={40 + rank}) world_rank={rank}, local_rank={rank % 2}"
              for rank in range(4)]  # fmt: skip
    finding = first(tmp_path, [*listed, *HEAD[1:], *says("(TrainWorker pid=42, ip=10.0.3.1) ", RAISED)])
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (2,))


def test_a_number_of_a_process_that_two_machines_have_is_no_rank(tmp_path: Path) -> None:
    listed = [f"(Trainer pid=7) - (ip=10.0.3.{rank}, pid=42) world_rank={rank}, local_rank=0" for rank in range(2)]
    assert first(tmp_path, [*listed, *HEAD[1:], *says("(TrainWorker pid=42, ip=10.0.3.1) ", RAISED)]).culprit_ranks == ()


def with_stack(rank: int, op: str, *frames: str) -> tuple[list[str], list[str]]:
    """What a rank prints at its time-out down to the head of the stack, and the stack."""
    lines = list(timeout_lines("2.6", Stuck(rank, 100, op=op)))
    return [*lines[:2], f"{head('2.6', 'E', rank)}Stack trace of the failed collective: "], [
        f"#{number} {frame}" for number, frame in enumerate(frames)
    ]


C10 = "from /env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3346"
IN_BACKWARD = ("_run_backward from /env/lib/python3.11/site-packages/torch/autograd/graph.py:825", "train from /ws/loop.py:190")
IN_METRICS = (f"all_gather {C10}", "log_metrics from /ws/logs.py:88", "train from /ws/loop.py:214")
STACKS = [
    with_stack(rank, "ALLGATHER" if rank == 1 else "ALLREDUCE", *(IN_METRICS if rank == 1 else IN_BACKWARD))
    for rank in range(4)
]


def test_that_a_line_is_further_down_says_little_in_a_loop(tmp_path: Path) -> None:
    finding = first(tmp_path, [*HEAD, *(line for begin, stack in STACKS for line in (*begin, *stack))])
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (Cause.SKIPPED_COLLECTIVE, Certainty.POSSIBLE, (1,))


@pytest.mark.parametrize("heads_first", [True, False])
def test_stacks_of_which_the_lines_are_mixed_are_nobodys(tmp_path: Path, heads_first: bool) -> None:
    frames = [stack[depth] for depth in range(3) for _, stack in STACKS if depth < len(stack)]
    begins = [line for begin, _ in STACKS for line in begin]
    if not heads_first:  # the first head and frame come before the others
        begins, frames = [*STACKS[0][0], frames[0], *begins[len(STACKS[0][0]) :]], frames[1:]
    finding = first(tmp_path, [*HEAD, *begins, *frames])
    assert (finding.cause, finding.certainty) == (Cause.RANK_ONLY_COLLECTIVE, Certainty.POSSIBLE)
    assert finding.divergence is not None
    assert all(each.operation is None or each.operation.call.site is None for each in finding.divergence.by_rank.values())


@pytest.mark.parametrize("twice", [False, True])
def test_where_every_frame_says_whose_it_is_they_may_be_mixed(tmp_path: Path, twice: bool) -> None:
    mixed = [f"[rank{rank}]: {stack[depth]}" for depth in range(3) for rank, (_, stack) in enumerate(STACKS)
             if depth < len(stack)]  # fmt: skip
    lines = [line for begin, _ in STACKS for line in begin] + mixed
    finding = first(tmp_path, [*HEAD, *lines, *(lines if twice else [])])
    assert "logs.py:88" in finding.summary
    assert "loop.py:190" in finding.summary


def test_a_culprit_whose_line_is_not_known_is_no_proven_one(tmp_path: Path) -> None:
    lines = [line for rank, (begin, stack) in enumerate(STACKS) for line in (*begin, *(stack if rank != 1 else []))]
    assert first(tmp_path, [*HEAD, *lines]).certainty is Certainty.POSSIBLE
