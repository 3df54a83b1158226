from __future__ import annotations

import io
import random

import pytest

from desync.diagnosis.claims import interpret
from desync.evidence.logs.assemble import LogEvidence, assemble
from desync.evidence.logs.clock import time_of
from desync.evidence.logs.lines import LineScanner
from desync.evidence.logs.reader import LogReader
from desync.evidence.logs.speakers import Speaker, parse
from desync.model import Cause, Certainty, ClaimKind, Diagnosis, Evidence, Finding, Job, Status

from . import log_samples as made
from .log_samples import Stuck, timeout_lines

PREFIXES = {"bare": made.bare, "srun": made.srun, "tee": made.tee(4), "ray": made.ray, "container": made.container}


def read(text: str | bytes) -> LogReader:
    reader = LogReader()
    reader.read(io.BytesIO(text.encode() if isinstance(text, str) else text), year=2025)
    return reader


def diagnosed(text: str | bytes) -> tuple[Diagnosis, LogEvidence]:
    found = assemble(read(text).facts)
    evidence = Evidence(job=Job(world_size=found.world_size), traces=found.traces, claims=found.claims, ended=True)
    return interpret(evidence), found


def only(text: str | bytes) -> Finding:
    findings = diagnosed(text)[0].findings
    assert len(findings) == 1, findings
    return findings[0]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("version", made.VERSIONS)
def test_the_rank_that_never_came_is_named_whatever_the_wording(version: str, prefix: str) -> None:
    text = made.log([(rank, timeout_lines(version, Stuck(rank, 100))) for rank in range(8) if rank != 5], PREFIXES[prefix], 8)
    finding = only(text)
    assert (finding.status, finding.culprit_ranks, finding.certainty) == (Status.HANG, (5,), Certainty.POSSIBLE)
    assert finding.divergence is not None
    assert (finding.divergence.group.name, finding.divergence.seq, finding.divergence.op) == ("0", 100, "all_reduce")


@pytest.mark.parametrize("version", made.VERSIONS)
def test_all_waiting_in_one_operation_blames_nobody(version: str) -> None:
    finding = only(made.log([(rank, timeout_lines(version, Stuck(rank, 100))) for rank in range(4)], world=4))
    assert (finding.cause, finding.culprit_ranks) == (Cause.COMMUNICATION_STALLED, ())


@pytest.mark.parametrize("version", made.VERSIONS)
def test_another_operation_at_the_same_number_is_possible_at_best(version: str) -> None:
    stuck = [Stuck(rank, 100, op="ALLREDUCE" if rank == 2 else "_REDUCE_SCATTER_BASE") for rank in range(4)]
    finding = only(made.log([(each.rank, timeout_lines(version, each)) for each in stuck], world=4))
    assert (finding.status, finding.culprit_ranks, finding.certainty) == (Status.HANG, (2,), Certainty.POSSIBLE)


@pytest.mark.parametrize("version", ["2.3", "2.4", "2.5", "2.6", "2.9"])
def test_group_ranks_become_ranks_and_what_only_follows_is_no_fault(version: str) -> None:
    tensor = [Stuck(rank, 93, group_rank=rank - 4, guid="2", local=1, description="TP") for rank in (4, 5, 7)]
    data = [
        Stuck(rank, 38, op="_REDUCE_SCATTER_BASE", group_rank=0, guid=str(3 + rank), local=2, description="DP")
        for rank in range(4)
    ]
    finding = only(made.log([(each.rank, timeout_lines(version, each)) for each in (*data, *tensor)], world=8))
    assert finding.culprit_ranks == (6,)
    assert finding.divergence is not None
    assert (finding.divergence.seq, finding.divergence.group.ranks) == (93, (4, 5, 6, 7))


def test_two_groups_with_one_local_number_are_kept_apart() -> None:
    first = [Stuck(rank, 50, group_rank=rank, local=9, description="EP") for rank in (0, 1)]
    second = [Stuck(rank, 70, group_rank=rank - 2, local=9, description="EP") for rank in (2, 3)]
    _, found = diagnosed(made.log([(each.rank, timeout_lines("2.4", each)) for each in (*first, *second)], world=4))
    names = {trace.rank: {row.group for row in trace.operations.rows(trace.rank)} for trace in found.traces}
    assert names[0] == names[1]
    assert names[2] == names[3]
    assert names[0] != names[2]


def test_counters_far_apart_without_group_names_are_no_lag() -> None:
    stuck = [Stuck(0, 96117), Stuck(1, 96117), Stuck(2, 96117), Stuck(3, 64088)]
    diagnosis, _ = diagnosed(made.log([(each.rank, timeout_lines("2.1", each)) for each in stuck], world=4))
    assert all(3 not in finding.culprit_ranks for finding in diagnosis.findings)


def test_lines_of_ranks_mixed_cut_and_coloured_still_tell_the_same() -> None:
    shuffled = random.Random(3)
    queues = [list(timeout_lines("2.6", Stuck(rank, 100))) for rank in range(8) if rank != 5]
    lines = ["world_size=8"]
    while any(queues):
        queue = shuffled.choice([queue for queue in queues if queue])
        line = queue.pop(0)
        lines.append(line[: shuffled.choice([len(line), len(line), 300])])
        if shuffled.random() < 0.3:
            lines[-1] = f"Epoch 4:  40%|████▍     | 400/1000 [03:40<05:30]\x1b[31m{lines[-1]}\x1b[0m"
    assert only("\r".join(["", *lines[:1]]) + "\n" + "\n".join(lines)).culprit_ranks == (5,)


def test_the_observer_of_the_dump_signal_with_older_counters_is_the_late_one() -> None:
    tag = "[PG ID 0 PG GUID 0(default_pg) Rank 2]"
    head = "[rank2]:[E611 02:55:33.943802996 ProcessGroupNCCL.cpp:1682]"
    own = [
        f"{head} {tag} Observed flight recorder dump signal from another rank via TCPStore.",
        f"{head} {tag} Received a dump signal due to a collective timeout from  rank 1 and we will try our best to dump the "
        "debug info. Last enqueued NCCL work: 99, last completed NCCL work: 99.This is most likely caused by incorrect usages",
    ]
    text = made.log([*((rank, timeout_lines("2.9", Stuck(rank, 100))) for rank in (0, 1, 3)), (2, own)], world=4)
    finding = only(text)
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.STALLED_RANK, (2,), Certainty.LIKELY)


def test_the_desync_report_names_who_is_behind_and_its_first_number_misleads() -> None:
    report = [
        *timeout_lines("2.5", Stuck(0, 96, enqueued=102)),
        "[rank0]:[E1219 11:25:09.162249801 ProcessGroupNCCL.cpp:1840] [PG ID 0 PG GUID 0(default_pg) Rank 0] ",
        "\t - [0] Timeout at collective: ALLREDUCE, #102",
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
        "\t     [3] finished collective #95, but didn't join collective #96 (count from 1)",
    ]
    others = [(rank, timeout_lines("2.5", Stuck(rank, 96))) for rank in (1, 2)]
    finding = only(made.log([(0, report), *others], world=4))
    assert finding.culprit_ranks == (3,)
    assert finding.divergence is not None
    assert finding.divergence.seq == 96


def fingerprint(rank: int, op: str, shape: str, other: int, seq: int = 14) -> str:
    tensors = f"TensorShape=[{shape}], TensorDtypes=Float, TensorDeviceTypes=x"
    own = f"CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, {tensors})"
    misprinted = "CollectiveFingerPrint(SequenceNumber=0OpType=GATHER)"
    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. "
        f"Rank {rank} is running collective: {own}, but Rank {other} is running collective: {misprinted}."
        "Collectives differ in the following aspects: \t Tensor shapes: 1vs 2"
    )


def wrapper(rank: int, op: str, shape: str, other: int) -> list[str]:
    return [f"[rank{rank}]: Traceback (most recent call last):", fingerprint(rank, op, shape, other)]


def test_the_wrapper_counts_from_zero_and_misprints_the_peer() -> None:
    parts = [(rank, wrapper(rank, "ALLREDUCE", "64" if rank == 2 else "128", 0 if rank == 2 else 2)) for rank in range(4)]
    finding = only(made.log(parts, world=4))
    assert (finding.cause, finding.culprit_ranks) == (Cause.ARGUMENT_MISMATCH, (2,))
    assert finding.certainty is not Certainty.POSSIBLE
    assert finding.divergence is not None
    assert (finding.divergence.seq, finding.divergence.op) == (15, "all_reduce")


GLOO = "[E ProcessGroupGloo.cpp:144] "


def test_only_rank_0s_list_of_the_monitored_barrier_counts() -> None:
    reached = [
        f"{GLOO}Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
        "rank 0. Please check rank 0 logs for faulty rank."
        for rank in (1, 2)
    ]
    listed = f"{GLOO}[Rank 0]: Ranks 3, 4 failed to pass monitoredBarrier in 1800000 ms"
    finding = only("\n".join(["world_size=5", listed, *reached]))
    assert (finding.status, finding.culprit_ranks) == (Status.HANG, (3, 4))
    assert finding.divergence is not None
    assert finding.divergence.op == "barrier"
    # Without any list of rank 0's it is rank 0 itself that came late.
    assert only("\n".join(["world_size=3", *reached])).culprit_ranks == (0,)


def traceback(rank: int | None, error: str, line: int = 7) -> list[str]:
    head = f"[rank{rank}]: " if rank is not None else ""
    return [
        f"{head}Traceback (most recent call last):",
        f'{head}  File "/job/train.py", line {line}, in <module>',
        f"{head}    main()",
        f"{head}{error}",
    ]


CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:61300."


def test_closed_connections_are_victims_of_the_one_that_raised() -> None:
    text = made.log([(1, traceback(1, "KeyError: 'x'")), *((rank, traceback(rank, CLOSED)) for rank in (0, 2))], world=3)
    finding = only(text)
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.EXCEPTION, (1,), Status.CRASH)
    assert "KeyError" in finding.summary


def elastic(entries: list[tuple[int, int]]) -> list[str]:
    lines = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
    ]
    for number, (rank, code) in enumerate([*entries[1:], entries[0]]):
        if number == len(entries) - 1:
            lines += ["-" * 60, "Root Cause (first observed failure):"]
        lines += [
            f"[{number}]:",
            "  time      : 2025-02-03_19:07:48",
            "  host      : bigbox",
            f"  rank      : {rank} (local_rank: {rank})",
            f"  exitcode  : {code} (pid: {400 + rank})",
            "  error_file: <N/A>",
        ]
    return [*lines, "=" * 60]


def test_an_anonymous_traceback_belongs_to_the_only_rank_that_failed() -> None:
    text = "\n".join([*traceback(None, "ValueError: odd"), *elastic([(2, 1), (0, -15), (1, -15)])])
    finding = only(text)
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (2,))


@pytest.mark.parametrize(("code", "cause"), [(-9, Cause.KILLED), (-11, Cause.KILLED), (13, Cause.EXITED_EARLY)])
def test_a_rank_that_ended_without_a_word_is_found_among_its_victims(code: int, cause: Cause) -> None:
    parts = [(rank, traceback(rank, CLOSED)) for rank in (0, 1, 3)]
    text = "\n".join([made.log(parts, world=4), *elastic([(0, 1), (1, 1), (2, code), (3, 1)])])
    finding = only(text)
    assert (finding.cause, finding.culprit_ranks, finding.status) == (cause, (2,), Status.CRASH)


def test_after_a_time_out_the_launchers_kill_is_no_news() -> None:
    parts = [(rank, timeout_lines("2.6", Stuck(rank, 100))) for rank in (0, 1, 3)]
    text = "\n".join([made.log(parts, world=4), *elastic([(0, -6), (1, -6), (3, -6), (2, -9)])])
    finding = only(text)
    assert (finding.status, finding.culprit_ranks, finding.cause) == (Status.HANG, (2,), Cause.UNKNOWN)


def test_sends_and_recvs_that_time_out_accuse_nobody_but_the_only_silent_one() -> None:
    stuck = [Stuck(rank, 9, op="RECV", group_rank=rank % 2, guid="7", local=3, description="PP") for rank in (0, 1, 3)]
    finding = only(made.log([(each.rank, timeout_lines("2.9", each)) for each in stuck], world=4))
    assert (finding.status, finding.culprit_ranks, finding.certainty) == (Status.HANG, (2,), Certainty.POSSIBLE)
    all_wait = [*stuck, Stuck(2, 9, op="SEND", group_rank=0, guid="7", local=3, description="PP")]
    finding = only(made.log([(each.rank, timeout_lines("2.9", each)) for each in all_wait], world=4))
    assert (finding.culprit_ranks, finding.cause) == ((), Cause.UNKNOWN)


def test_the_process_that_spawn_names_is_the_rank_that_raised() -> None:
    launcher = traceback(None, "torch.multiprocessing.spawn.ProcessRaisedException: ")
    text = [
        "world_size=4",
        *launcher,
        "",
        "-- Process 3 terminated with the following error:",
        *traceback(None, "KeyError: 'x'"),
    ]
    finding = only("\n".join(text))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (3,))


def test_an_exception_whose_rank_nothing_tells_blames_nobody_for_sure() -> None:
    finding = only("\n".join(["world_size=4", *traceback(None, "ValueError: odd")]))
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.EXCEPTION, (), Status.CRASH)


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA out of memory. Tried to allocate 2.32 GiB (GPU 2; 39.59 GiB total capacity)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB. GPU 2 has a total capacity of 79.15 GiB",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB. GPU 2 has a total capacty of 79.15 GiB",
    ],
)
def test_out_of_memory_in_all_wordings(error: str) -> None:
    finding = only("\n".join([*traceback(None, error), *elastic([(2, 1), (0, -15), (1, -15), (3, -15)])]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.OUT_OF_MEMORY, (2,))


def test_memory_that_ran_out_and_was_swallowed_explains_the_rank_that_fell_out_of_step() -> None:
    own = ["[rank1]: WARNING: CUDA out of memory (GPU 1; 39 GiB total capacity), skipping this batch"]
    parts = [(1, own), *((rank, timeout_lines("2.6", Stuck(rank, 100))) for rank in (0, 2, 3))]
    finding = only(made.log(parts, world=4))
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.OUT_OF_MEMORY, (1,), Status.HANG)


def test_the_kernels_word_makes_a_kill_one_of_memory() -> None:
    kernel = "Memory cgroup out of memory: Killed process 402 (python) total-vm:301223404kB, anon-rss:88120044kB"
    finding = only("\n".join([*elastic([(2, -9), (0, -15), (1, -15)]), kernel]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.KILLED, (2,))
    assert any("Killed process 402" in line for line in finding.evidence)
    assert "memory of the host" in finding.advice


def test_slurm_says_which_task_ran_out_of_memory() -> None:
    lines = [" 0: world_size=4", "srun: error: cn07: task 2: Out Of Memory", "srun: error: cn07: tasks 0-1,3: Killed"]
    finding = only("\n".join(lines))
    assert (finding.cause, finding.culprit_ranks) == (Cause.KILLED, (2,))


def test_unused_parameters_are_named() -> None:
    error = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    more = [
        "[rank3]: making sure all `forward` function outputs participate in calculating loss. ",
        "[rank3]: Parameters which did not receive grad for rank 3: head.mask.0.weight, head.mask.0.bias",
        "[rank3]: Parameter indices which did not receive grad for rank 3: 212 213",
    ]
    finding = only("\n".join(["world_size=4", *traceback(3, error), *more]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.UNUSED_PARAMETERS, (3,))
    assert "head.mask.0.weight" in finding.summary


def test_models_that_differ_are_a_structure_and_the_majority_decides() -> None:
    def ddp(rank: int, own: int, other: int, others: int) -> list[str]:
        words = (
            f"DDP expects same model across all ranks, but Rank {rank} has {own} params, while rank {other} has inconsistent"
        )
        return traceback(rank, f"RuntimeError: {words} {others} params.")

    parts = [(rank, ddp(rank, 10, 2, 12)) for rank in (0, 1, 3)]
    finding = only(made.log([*parts, (2, ddp(2, 12, 0, 10))], world=4))
    assert (finding.cause, finding.culprit_ranks) == (Cause.STRUCTURE_MISMATCH, (2,))


def test_sizes_that_gloo_finds_different_blame_nobody() -> None:
    error = "RuntimeError: Enforce fail at pair.cc:470: op.preamble.length <= op.nbytes. 8 vs 4"
    finding = only("\n".join(["world_size=2", *traceback(1, error)]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.ARGUMENT_MISMATCH, ())


def barrier_line(rank: int, count: int, world: int = 4) -> str:
    return (
        f"[2023-05-30 10:15:10,644][torch.distributed.distributed_c10d][INFO] - Waiting in store based barrier to initialize "
        f"process group for rank: {rank}, key: store_based_barrier_key:1 "
        f"(world_size={world}, worker_count={count}, timeout=0:10:00)"
    )


def test_the_rank_that_never_waited_in_the_rendezvous_is_missing() -> None:
    finding = only("\n".join(barrier_line(rank, 3) for _ in range(5) for rank in (0, 1, 3)))
    assert (finding.cause, finding.culprit_ranks, finding.status) == (Cause.RENDEZVOUS, (2,), Status.HANG)
    # Where not all that came have named themselves, nobody is named.
    assert only("\n".join(barrier_line(rank, 3) for rank in (0, 1))).culprit_ranks == ()


def test_errors_of_the_network_come_before_the_time_outs_and_name_no_rank() -> None:
    warn = "cn07:252297:253000 [3] net_ib.cc:95 NCCL WARN NET/IB : Got completion from peer 10.3.4.5<53780> with status=12"
    text = "\n".join([warn, made.log([(rank, timeout_lines("2.4", Stuck(rank, 100))) for rank in range(4)], world=4)])
    finding = only(text)
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.COMMUNICATION_STALLED, (), Certainty.LIKELY)
    assert "status=12" in finding.summary


def test_a_watchdog_without_heartbeat_after_the_work_is_teardown() -> None:
    head = "[rank1]:[E1130 04:02:00.039950229 ProcessGroupNCCL.cpp:1375] [PG 0 (default_pg) Rank 1]"
    beat = f"{head} Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=1"
    done = only("\n".join(["world_size=2", "iteration     5000/    5000 | loss 1.0", beat, *elastic([(1, -6)])]))
    assert (done.cause, done.culprit_ranks) == (Cause.TEARDOWN, ())
    amid = only("\n".join(["world_size=2", "iteration     4000/    5000 | loss 1.0", beat, *elastic([(1, -6)])]))
    assert (amid.cause, amid.certainty) == (Cause.UNKNOWN, Certainty.POSSIBLE)


def test_of_several_runs_in_one_file_each_has_its_own_facts() -> None:
    launch = "W0611 02:14:05 run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
    first = [launch, *traceback(1, "KeyError: 'first'"), *elastic([(1, 1), (0, -15)])]
    second = [launch, *traceback(0, "KeyError: 'second'"), *elastic([(0, 1), (1, -15)])]
    reader = read("\n".join([*first, *second]))
    assert len(reader.runs) == 2
    assert [run.tracebacks[0].message for run in reader.runs] == ["'first'", "'second'"]


FRIGHTENING = """world_size=8 torch=2.7.1+cu118
config: {'on_error': 'abort', 'watchdog': {'kill_on_hang': True}}
prompt: "RuntimeError: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, \
Timeout(ms)=1) ran for 2 milliseconds before timing out.\\nTraceback (most recent call last):\\n"
[2025-08-19 08:00:11] gpu:23983:24683 [0] misc/ibvwrap.cc:110 NCCL WARN Failed to open libibverbs.so[.1]
step=000800 loss=2.7184 word error 0.1182 deadlock avoided, killed 2 stale uploads, CUDA error rate 0
rank 7 finished collective clean-up of cache, 0 errors, nothing aborted
training complete: 1200 steps, 0 failed batches
[rank0]:[W819 08:15:53.000021865 ProcessGroupNCCL.cpp:1479] Warning: destroy_process_group() was not called before program exit
"""


def test_frightening_words_in_a_job_that_ended_well_are_no_finding() -> None:
    diagnosis, found = diagnosed(FRIGHTENING)
    assert (diagnosis.status, diagnosis.findings) == (Status.HEALTHY, ())
    assert (found.torch, found.world_size) == ("2.7.1", 8)
    # Without a word of its end nothing is known of it.
    assert diagnosed("world_size=8\nstep=1 loss=2\n")[0].status is Status.UNKNOWN


def test_a_rank_that_still_moves_is_slow_and_not_hung() -> None:
    bar = "val:  {0}%|████▍     | {0}0/1000 [30:01<05:10,  0.34s/it]"
    parts = [(rank, list(timeout_lines("1.13", Stuck(rank, 514, op="BROADCAST")))) for rank in (1, 2, 3)]
    text = f"world_size=4\r{bar.format(85)}\n{made.log(parts)}\r{bar.format(91)}\r{bar.format(97)}"
    finding = only(text)
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.SLOW, Cause.SLOW_RANK, (0,))
    stopped = only(f"world_size=4\r{bar.format(85)}\n{made.log(parts)}")
    assert stopped.status is Status.HANG


def test_time_outs_of_gloo_take_the_call_from_the_lines_of_python_above_them() -> None:
    def own(rank: int) -> list[str]:
        lines = traceback(
            rank, "RuntimeError: [/gloo/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete"
        )
        call = f'[rank{rank}]:   File "/env/site-packages/torch/distributed/distributed_c10d.py", line 2000, in all_gather'
        return [*lines[:3], call, lines[3]]

    finding = only(made.log([(rank, own(rank)) for rank in (0, 1, 3)], world=4))
    assert finding.culprit_ranks == (2,)
    assert finding.divergence is not None
    assert finding.divergence.op == "all_gather"


def test_each_launchers_prefix_tells_who_speaks() -> None:
    base = Speaker(file=1)
    assert parse("[default3]:[rank11]:[E x", base) == (Speaker(rank=11, local=3, file=1), "[E x")
    assert parse(" 3: [rank3]: x", base)[0] == Speaker(rank=3, task=3, file=1)
    assert parse("(WorkerDict pid=279916, ip=10.0.0.1) x", base) == (Speaker(pid=279916, file=1), "x")
    assert parse("[1,5]<stderr>: x", base) == (Speaker(rank=5, file=1), "x")
    assert parse("Epoch 1: 40%|[rank2]:[E y", base) == (Speaker(rank=2, file=1), "[E y")
    assert parse("plain", base) == (base, "plain")


def test_times_of_all_kinds_are_read() -> None:
    assert time_of("[E611 02:55:33.075803794 ProcessGroupNCCL.cpp:1]", 2025) == 1749610533075803794
    assert time_of("[E1202 02:55:33.1 x.cpp:1]", 2025) == 1764644133100000000
    assert time_of("E0318 09:26:51.407000 77 run.py:1] x", 2025) == 1742290011407000000
    assert time_of("[2024-03-15 09:31:22,640] x", None) == 1710495082640000000
    assert time_of("[E611 02:55:33.1 x.cpp:1]", None) is None
    assert time_of("[E231 99:55:33.1 x.cpp:1]", 2025) is None


@pytest.mark.parametrize(
    "content",
    [
        b"x" * (10 << 20) + b" Error: y",
        b"Traceback (most recent call last):\n" * 50_000,
        bytes(range(256)) * 4000,
        b"[rank999999999999]:[E1 ProcessGroupNCCL.cpp:1] " * 1000,
        b"[rank1]:" * 200_000,
        b"\r" * 1_000_000 + b"Error: x",
        (b"[rank0]: Traceback (most recent call last):\n" + b'[rank0]:   File "a.py", line 1, in f\n' * 30_000),
        b"\x1b[" * 100_000 + b"Error: ",
    ],
)
def test_no_log_is_too_strange(content: bytes) -> None:
    diagnosis, _ = diagnosed(content)
    assert diagnosis.status in (Status.UNKNOWN, Status.CRASH)


def test_only_lines_that_can_mean_something_become_text() -> None:
    boring = b"".join(b"step=%d loss=1.0\n" % step for step in range(200_000))
    scanner = LineScanner(io.BytesIO(boring + b"KeyError: x\nnext\n" + boring))
    assert [line.strip() for line in scanner] == ["KeyError: x"]
    detail = b"".join(
        b"[rank0]:[I1 ProcessGroupWrapper.cpp:1] [Rank 0] Running collective: n%d\n" % each for each in range(9000)
    )
    assert [line[-6:] for line in LineScanner(io.BytesIO(detail))] == [": n8998"[-6:], ": n8999"[-6:]]


def test_folded_lines_of_ray_are_told() -> None:
    text = made.log([(0, ["[rank0]:[E1 ProcessGroupNCCL.cpp:1] x [repeated 6x across cluster]"])], made.ray, 8)
    assert any("Ray has folded 6" in note for note in assemble(read(text).facts).notes)


def test_claims_are_short_and_say_whose_words_they_are() -> None:
    _, found = diagnosed("world_size=4\n" + "\n".join(barrier_line(rank, 3) for rank in (0, 1, 3)))
    claim = next(claim for claim in found.claims if claim.kind is ClaimKind.RENDEZVOUS)
    assert claim.text == "3 of 4 ranks came to the rendezvous"
