"""Logs in which too little, or too much, would be concluded: who has not spoken, whose number it is, which run counts."""

from __future__ import annotations

import pytest

from desync.diagnosis.claims import interpret
from desync.evidence.logs.assemble import assemble
from desync.evidence.mixture import _run_that_counts
from desync.model import Cause, Certainty, Evidence, Job, Status

from . import log_samples as made
from .log_samples import Stuck, timeout_lines
from .test_logs import elastic, only, read, traceback


def spoken(ranks: tuple[int, ...], version: str = "2.6") -> str:
    """A job of four of which only these ranks time out, and the launcher's summary of all."""
    text = made.log([(rank, timeout_lines(version, Stuck(rank, 100))) for rank in ranks], world=4)
    return text + "\n".join(
        elastic([(rank, -6 if rank in ranks else -15) for rank in (*ranks, *sorted({0, 1, 2, 3} - {*ranks}))])
    )


def test_ranks_that_their_launcher_ended_before_they_spoke_are_not_named() -> None:
    finding = only(spoken((0,)))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.UNKNOWN, ())
    assert only(spoken((0, 1, 3))).culprit_ranks == (2,)


@pytest.mark.parametrize(("heard", "named"), [(range(8), ()), (range(12), (12, 13, 14, 15))])
def test_half_of_a_job_that_is_silent_is_not_named(heard: range, named: tuple[int, ...]) -> None:
    """The logs of the other machine were not given."""
    finding = only(made.log([(rank, timeout_lines("2.6", Stuck(rank, 100))) for rank in heard], world=16))
    assert (finding.certainty, finding.culprit_ranks) == (Certainty.POSSIBLE, named)


def test_a_groups_number_without_a_speaker_is_no_rank() -> None:
    """``what()`` has no rank in front; its "Rank 1" is that of the tag's group."""
    tensor = {"local": 1, "description": "TENSOR_MODEL_PARALLEL_GROUP"}
    data = {"local": 2, "description": "DATA_PARALLEL_GROUP"}
    stuck = [
        Stuck(0, 7121, **tensor, group_rank=0),  # type: ignore[arg-type]  # a mapping of mixed types
        Stuck(2, 330, **data, group_rank=1),  # type: ignore[arg-type]
        Stuck(3, 331, **data, group_rank=1),  # type: ignore[arg-type]
    ]
    finding = only(made.log([(each.rank, timeout_lines("2.4", each)) for each in stuck], world=4))
    assert finding.culprit_ranks == (1,)
    assert "Ranks 0,2-3 wait" in finding.summary


def test_an_operation_of_which_only_the_number_is_known_is_no_other_operation() -> None:
    """Seven have completed #100 and stand in #101; what rank 3 stands in is #100 itself."""
    stuck = [Stuck(rank, 100, enqueued=100) if rank == 3 else Stuck(rank, 101) for rank in range(8)]
    finding = only(made.log([(each.rank, timeout_lines("2.6", each)) for each in stuck], world=8))
    assert finding.culprit_ranks == (3,)
    assert finding.cause is Cause.STALLED_RANK
    assert "did not call" not in finding.summary


def test_memory_that_ran_out_explains_an_operation_of_another_size() -> None:
    told = (
        "WARNING:train:rank 1: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23 GiB -- skipping"
    )
    stuck = [Stuck(rank, 100, elements=1 if rank == 1 else 4096) for rank in range(4)]
    text = made.log([(0, [told]), *((each.rank, timeout_lines("2.6", each)) for each in stuck)], world=4)
    finding = only(text)
    assert (finding.cause, finding.culprit_ranks) == (Cause.OUT_OF_MEMORY, (1,))


def test_what_an_awaited_rank_has_said_itself_is_quoted() -> None:
    head = "[rank2]:[E1202 11:25:01.161799497 ProcessGroupNCCL.cpp:1375] "
    late = f"{head}Could not acquire GIL within 300 ms on exit, possible GIL induced hang"
    text = made.log([*((rank, timeout_lines("2.6", Stuck(rank, 100))) for rank in (0, 1, 3)), (2, [late])], world=4)
    finding = only(text)
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (2,))
    assert "Could not acquire GIL" in finding.summary


def fingerprint(rank: int, group_rank: int, shape: str, mismatch: bool) -> str:
    print_ = (
        f"CollectiveFingerPrint(SequenceNumber=412, OpType=ALLREDUCE, TensorShape=[{shape}], TensorDtypes=BFloat16, "
        "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))"
    )
    if not mismatch:
        head = f"[rank{rank}]:[I302 20:57:36.061300522 ProcessGroupWrapper.cpp:591] [Rank {group_rank}] "
        return f"{head}Running collective: {print_}"
    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {group_rank} is running collective: "
        f"{print_}, but Rank 2 is running collective: {print_}. Collectives differ in the following aspects: \t "
        "Tensor Tensor shapes"
    )


def test_the_wrapper_of_a_smaller_group_is_compared_there() -> None:
    shapes = {4: "4096, 1024", 5: "4096, 1024", 6: "4096, 512", 7: "4096, 1024"}
    lines = [fingerprint(rank, rank - 4, shape, mismatch=False) for rank, shape in shapes.items()]
    for rank, shape in shapes.items():
        lines += [f"[rank{rank}]: Traceback (most recent call last):", fingerprint(rank, rank - 4, shape, mismatch=True)]
    finding = only("\n".join(["world_size=8", *lines]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.ARGUMENT_MISMATCH, (6,))
    assert "4096, 512" in finding.summary
    assert finding.divergence is not None
    assert finding.divergence.group.ranks == (4, 5, 6, 7)


AGENT = "I0505 01:04:00.310000 9100 torch/distributed/elastic/agent/server/api.py:917] [default] "
STEPS = [f"step={number:06d} loss=2.9" for number in range(40)]


@pytest.mark.parametrize(
    ("end", "status"),
    [([*STEPS, "training complete: 1000 steps"], Status.HEALTHY), (traceback(0, "KeyError: 'loss'"), Status.CRASH)],
)
def test_a_restart_after_which_the_job_ended_well_makes_it_well(end: list[str], status: Status) -> None:
    first = ["world_size=2", *STEPS, *traceback(1, "ConnectionError: s3: 503 slow down")]
    again = f"{AGENT}Worker group FAILED. 3/3 attempts left; will restart worker group"
    notes: list[str] = []
    run = _run_that_counts(read("\n".join([*first, again, *end])).runs, notes)
    found = assemble(run)
    diagnosis = interpret(Evidence(job=Job(world_size=2), traces=found.traces, claims=found.claims, ended=True))
    assert diagnosis.status is status
    assert notes
    assert all(finding.culprit_ranks == (0,) for finding in diagnosis.findings)


def test_a_group_lacks_nobody_because_two_ranks_are_silent() -> None:
    """Two of four wait in a group of their own; the others need not belong to it."""
    group = {"guid": "7", "local": 1, "description": "pair"}
    stuck = [Stuck(rank, 1, group_rank=rank - 1, **group) for rank in (1, 2)]  # type: ignore[arg-type]  # a mapping of mixed types
    finding = only(made.log([(each.rank, timeout_lines("2.6", each)) for each in stuck], world=4))
    assert finding.culprit_ranks == ()


def test_a_traceback_without_a_rank_is_possibly_that_of_the_only_silent_one() -> None:
    text = made.log([(rank, timeout_lines("2.6", Stuck(rank, 100))) for rank in (0, 1, 3)], world=4)
    finding = only("\n".join([*traceback(None, "ValueError: bad batch"), text]))
    assert (finding.cause, finding.certainty, finding.culprit_ranks) == (Cause.EXCEPTION, Certainty.POSSIBLE, (2,))


def test_the_size_of_the_job_is_read_in_two_words_too() -> None:
    text = made.log([(rank, timeout_lines("2.6", Stuck(rank, 100))) for rank in range(4)])
    assert only("\n".join(["Process rank: 0, world size: 8, device: cuda:0", text])).cause is not Cause.COMMUNICATION_STALLED
    assert only(text).cause is Cause.COMMUNICATION_STALLED


def gloo_timeout(rank: int, function: str, line: int) -> list[str]:
    head = f"[rank{rank}]: "
    return [
        f"{head}Traceback (most recent call last):",
        f'{head}  File "/job/train.py", line {line}, in main',
        f'{head}  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3801, in {function}',
        f"{head}RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation",
    ]


def test_two_ranks_that_time_out_in_different_calls_are_shown_with_both() -> None:
    finding = only("\n".join(["world_size=2", *gloo_timeout(0, "all_reduce", 88), *gloo_timeout(1, "barrier", 95)]))
    assert (finding.status, finding.culprit_ranks) == (Status.HANG, ())
    assert "train.py:88" in finding.summary
    assert "train.py:95" in finding.summary


def test_what_nccl_refuses_is_the_programs_doing() -> None:
    error = (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, invalid usage\nncclInvalidUsage: This"
    )
    lines = [line for rank in range(2) for line in traceback(rank, error.split("\n")[0])]
    lines = [
        part
        for line in lines
        for part in ((line, "[rank0]: ncclInvalidUsage: This usually") if "invalid usage" in line else (line,))
    ]
    finding = only("\n".join(["world_size=2", *lines]))
    assert finding.cause is Cause.EXCEPTION


def test_ranks_that_stand_at_one_number_in_different_operations_do_not_agree() -> None:
    """Rank 0 has passed #100 already: that hides that the others called different things there."""
    stuck = [Stuck(0, 102), Stuck(1, 100), Stuck(2, 100, op="BROADCAST"), Stuck(3, 100, op="BROADCAST")]
    finding = only(made.log([(each.rank, timeout_lines("2.6", each)) for each in stuck], world=4))
    assert (finding.cause, finding.culprit_ranks) == (Cause.RANK_ONLY_COLLECTIVE, (1,))
    assert "they called different things" in finding.summary
