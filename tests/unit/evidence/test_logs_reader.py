"""What makes a failure of a log's lines, and what does not: quotes, errors that were survived, silence, aborts in the exit."""

from __future__ import annotations

import pytest

from desync.model import Cause, Certainty, Status

from . import log_samples as made
from .log_samples import Stuck, timeout_lines
from .test_logs import CLOSED, GLOO, diagnosed, elastic, fingerprint, only, traceback, wrapper

STEPS = [f"step {step} loss 1.{step}" for step in range(60)]
PORT = "cn07:252297:253000 [3] net_ib.cc:95 NCCL WARN NET/IB : mlx5_0:1 Got async event : port"
SURVIVED = {
    "time-out": list(timeout_lines("2.6", Stuck(1, 100)))[:1],
    "traceback": traceback(None, "ConnectionError: no metrics server"),
    "traceback of a rank": traceback(3, "ValueError: bad sample"),
    "list of a barrier": [f"{GLOO}[Rank 0]: Ranks 3, 4 failed to pass monitoredBarrier in 1800000 ms"],
    "refusal": [fingerprint(1, "ALLREDUCE", "8", 0)],
    "port": [f"{PORT} error", f"{PORT} active"],
    "memory": ["[rank2]: torch.OutOfMemoryError: CUDA out of memory. GPU 2 has a total capacity of 79.15 GiB"],
    "rendezvous": ["Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "
                   "(world_size=4, worker_count=3, timeout=0:10:00)"],
}  # fmt: skip


@pytest.mark.parametrize("error", SURVIVED)
def test_an_error_after_which_the_job_goes_on_and_ends_well_is_no_fault(error: str) -> None:
    lines = ["world_size=4", *STEPS, *SURVIVED[error], *STEPS, "training complete: 120 steps"]
    diagnosis, _ = diagnosed("\n".join(lines))
    assert (diagnosis.status, diagnosis.findings) == (Status.HEALTHY, ())


def test_what_is_printed_after_a_crash_as_well_is_no_good_end() -> None:
    wandb = ["wandb: 🚀 View run at https://wandb.example/x", "wandb: Synced 5 files", *(f"wandb: {line}" for line in STEPS)]
    finding = only("\n".join(["world_size=4", *STEPS, *traceback(2, "KeyError: 'x'"), *wandb]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (2,))
    # Nor is what stood there before the error, or what comes at once: another rank that was done.
    early = ["world_size=4", "training complete", *traceback(2, "KeyError: 'x'"), *STEPS]
    assert only("\n".join(early)).culprit_ranks == (2,)
    assert only("\n".join(["world_size=4", *traceback(2, "KeyError: 'x'"), "training complete"])).culprit_ranks == (2,)


def test_where_the_launcher_tells_of_ends_nothing_was_survived() -> None:
    lines = ["world_size=4", *traceback(2, "KeyError: 'x'"), *STEPS, "training complete", *elastic([(2, 1), (0, -15)])]
    assert only("\n".join(lines)).culprit_ranks == (2,)


def test_an_abort_in_the_exit_after_the_work_is_teardown_and_before_it_is_not() -> None:
    abort = ["terminate called without an active exception", *elastic([(1, -6)])]
    done = only("\n".join(["world_size=4", *STEPS, "training complete: 60 steps", *abort]))
    assert (done.cause, done.culprit_ranks) == (Cause.TEARDOWN, ())
    assert only("\n".join(["world_size=4", *STEPS, *abort])).cause is Cause.KILLED


def timeouts(ranks: list[int], version: str = "2.9") -> list[str]:
    return [line for rank in ranks for line in timeout_lines(version, Stuck(rank, 100))]


def test_of_silent_ranks_those_that_their_own_watchdog_ended_have_waited() -> None:
    ends = elastic([(0, -6), *((rank, -6) for rank in (1, 2, 3, 4, 6, 7)), (5, -15)])
    finding = only("\n".join(["world_size=8", *timeouts([0, 1, 2, 3, 4]), *ends]))
    assert finding.culprit_ranks == (5,)


def test_many_silent_ranks_say_that_the_log_is_cut_and_a_few_that_they_are_absent() -> None:
    assert only("\n".join(["world_size=8", *timeouts([0, 1, 2])])).culprit_ranks == ()
    assert only("\n".join(["world_size=8", *timeouts([0, 1, 2, 3, 4, 5])])).culprit_ranks == (6, 7)


def test_ranks_that_ray_has_folded_away_are_not_absent() -> None:
    line = f"{next(iter(timeout_lines('2.6', Stuck(3, 100))))} [repeated 6x across cluster]"
    finding = only(made.log([(rank, [line]) for rank in (3, 4, 5, 6, 7)], made.ray, 8))
    assert (finding.status, finding.culprit_ranks) == (Status.HANG, ())


def test_status_1_and_nothing_else_says_neither_why_nor_who_was_first() -> None:
    one = only("\n".join(["world_size=4", *elastic([(2, 1), (0, -15), (1, -15), (3, -15)])]))
    assert (one.cause, one.culprit_ranks, one.certainty) == (Cause.UNKNOWN, (2,), Certainty.POSSIBLE)
    several = only("\n".join(["world_size=4", *elastic([(2, 1), (0, 1), (1, 1), (3, 1)])]))
    assert (several.cause, several.culprit_ranks) == (Cause.UNKNOWN, ())


def test_a_status_without_a_word_stands_out_among_victims_even_if_only_it_has_one() -> None:
    parts = [(rank, traceback(rank, CLOSED)) for rank in (0, 1, 3)]
    ends = elastic([(2, 13), (0, -15), (1, -15), (3, -15)])
    finding = only("\n".join([made.log(parts, world=4), *ends]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXITED_EARLY, (2,))


def test_what_all_ranks_raise_alike_is_no_ranks_fault() -> None:
    error = "RuntimeError: Expected to mark a variable ready only once. It has been marked as ready twice."
    finding = only(made.log([(rank, traceback(rank, error)) for rank in range(3)], world=3))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, ())


def test_ranks_that_left_out_different_parameters_have_one_fault() -> None:
    error = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    parts = [
        (rank, [*traceback(rank, error), f"[rank{rank}]: Parameters which did not receive grad for rank {rank}: {name}"])
        for rank, name in ((1, "a.weight"), (3, "b.weight"))
    ]
    finding = only(made.log(parts, world=4))
    assert (finding.cause, finding.culprit_ranks) == (Cause.UNUSED_PARAMETERS, (1, 3))
    assert any("b.weight" in line for line in finding.evidence)


def test_the_rank_that_the_wrapper_refuses_is_known_without_a_word_of_its_own() -> None:
    finding = only(made.log([(rank, wrapper(rank, "ALLREDUCE", "128", 2)) for rank in (0, 1, 3)], world=4))
    assert (finding.status, finding.culprit_ranks) == (Status.CRASH, (2,))
    cut = [(rank, [line[:110] for line in wrapper(rank, "ALLREDUCE", "128", 2)]) for rank in (0, 1, 3)]
    finding = only(made.log(cut, world=4))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.ARGUMENT_MISMATCH, ())


def test_gloos_sizes_are_seen_without_a_traceback_too() -> None:
    words = "  what():  [enforce fail at /gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. Received"
    lines = ["world_size=2", "terminate called after throwing an instance of 'gloo::EnforceNotMet'", words]
    finding = only("\n".join([*lines, *traceback(0, CLOSED), *elastic([(1, -6), (0, 1)])]))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.ARGUMENT_MISMATCH, ())


def test_one_rank_in_another_call_at_gloos_time_out_is_a_guess() -> None:
    def own(rank: int, call: str) -> list[str]:
        lines = traceback(rank, "RuntimeError: [/gloo/buffer.cc:81] Timed out waiting 30000ms for recv operation to complete")
        return [*lines[:3], f'[rank{rank}]:   File "/env/torch/distributed/distributed_c10d.py", line 20, in {call}', lines[3]]

    finding = only(made.log([(rank, own(rank, "barrier" if rank == 2 else "all_reduce")) for rank in range(4)], world=4))
    assert (finding.status, finding.culprit_ranks, finding.certainty) == (Status.HANG, (2,), Certainty.POSSIBLE)


def test_of_operations_that_wait_for_one_rank_the_first_is_shown() -> None:
    tensor = [Stuck(rank, 500, group_rank=rank - 4, guid="12", local=1, description="TP") for rank in (4, 5, 7)]
    world = [Stuck(rank, 33) for rank in range(4)]
    finding = only(made.log([(each.rank, timeout_lines("2.6", each)) for each in (*world, *tensor)], world=8))
    assert finding.culprit_ranks == (6,)
    assert finding.divergence is not None
    assert (finding.divergence.group.description, finding.divergence.seq) == ("TP", 500)


def test_a_server_that_is_not_there_is_a_rendezvous_without_a_culprit() -> None:
    line = "The client socket has timed out after 1800s while trying to connect to (node1, 29500)."
    text = ["world_size=2", f"[E socket.cpp:957] [c10d] {line}", *traceback(1, f"torch.distributed.DistNetworkError: {line}")]
    finding = only("\n".join(text))
    assert (finding.cause, finding.culprit_ranks) == (Cause.RENDEZVOUS, ())


def test_network_errors_excuse_ranks_of_which_the_log_shows_nothing() -> None:
    warn = f"{PORT} error"
    finding = only("\n".join(["world_size=8", warn, *timeouts([0, 1, 2, 3, 4, 5, 7])]))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.COMMUNICATION_STALLED, (), Certainty.POSSIBLE)


def test_the_same_log_gives_the_same_answer() -> None:
    text = "\n".join(["world_size=8", *timeouts([0, 1, 2, 3, 4, 5, 7])])
    assert diagnosed(text)[0] == diagnosed(text)[0]


REDUCTION = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."


@pytest.mark.parametrize(
    ("lines", "switch"),
    [
        (timeouts([0, 1, 3], "2.2"), "torch 2.3 and newer do"),
        (timeouts([0, 1, 3]), "TORCH_FR_BUFFER_SIZE set to 2000"),
        (traceback(1, "RuntimeError: [/gloo/b.cc:8] Timed out waiting 9ms for recv operation to complete"), "set to DETAIL"),
        (traceback(1, REDUCTION), "TORCH_DISTRIBUTED_DEBUG set to INFO"),
        (["[rank0]:[E ProcessGroupNCCL.cpp:6] NCCL error: remote process exited"], "NCCL_DEBUG set to WARN"),
        (["(Worker pid=3) [rank0]:[E x.cpp:6] heartbeat [repeated 3x across cluster]"], "RAY_DEDUP_LOGS set to 0"),
    ],
)
def test_notes_say_which_switch_would_have_shown_more(lines: list[str], switch: str) -> None:
    _, found = diagnosed("\n".join(["world_size=4", *lines]))
    assert any(switch in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("words", "cause"),
    [("signal SIGKILL", Cause.KILLED), ("signal SIGSEGV", Cause.KILLED), ("exit code 3", Cause.EXITED_EARLY)],
)
def test_how_a_spawned_process_ended_is_told_by_its_parent(words: str, cause: Cause) -> None:
    error = f"torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with {words}"
    finding = only("\n".join(["world_size=4", *traceback(None, error)]))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, cause, (2,))
