"""Lines of Intel's groups (XCCL), of NVIDIA's driver in the kernel's log, and with the numbers of Intel MPI's mpirun."""

from __future__ import annotations

import random

import pytest

from desync.model import Cause, Certainty, Status

from . import log_samples as made
from .log_samples import Stuck, timeout_lines
from .test_logs import diagnosed, elastic, only, traceback
from .test_logs_drawn import BOX, TREE, verdict

STEPS = [f"step {step} loss 1.{step}" for step in range(60)]


def xccl(stuck: Stuck) -> list[str]:
    """The lines of torch-xpu-ops' ProcessGroupXCCLMonitor.cpp."""
    head, group = f"[rank{stuck.rank}]:[E1202 11:25:01.161799497 ProcessGroupXCCLMonitor.cpp:270] ", made.tag("2.6", stuck)
    sizes = f"NumelIn={stuck.elements}, NumelOut={stuck.elements}, Timeout(ms)=600000"
    return [
        f"{head}[Rank {stuck.rank}] Watchdog caught collective operation timeout: Work(SeqNum={stuck.seq}, OpType={stuck.op}, "
        f"{sizes}) ran for 600042 milliseconds before timing out.",
        f"{head}{group} failure detected by watchdog at work sequence id: {stuck.seq} PG status: last enqueued work: "
        f"{stuck.seq + 3}, last completed work: {stuck.seq - 1}",
    ]


def test_time_outs_of_xccl_are_read_as_those_of_nccl() -> None:
    stuck = [Stuck(rank, 100) for rank in range(8) if rank != 5]
    finding = only(made.log([(each.rank, xccl(each)) for each in stuck], world=8))
    as_nccl = only(made.log([(each.rank, list(timeout_lines("2.6", each))[:2]) for each in stuck], world=8))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, as_nccl.cause, (5,))
    assert finding.divergence is not None
    assert (finding.divergence.seq, finding.divergence.op, finding.divergence.group.backend) == (100, "all_reduce", "xccl")


def test_the_dump_signal_and_the_stuck_watchdog_of_xccl_are_read() -> None:
    late = (
        "[rank2]:[E1202 11:25:01.161799497 ProcessGroupXCCLMonitor.cpp:610] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a "
        "dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued "
        "xccl work: 99, last completed xccl work: 99.This is most likely caused by incorrect usages of collectives"
    )
    text = made.log([*((rank, xccl(Stuck(rank, 100))) for rank in (0, 1, 3)), (2, [late])], world=4)
    assert only(text).culprit_ranks == (2,)
    _, found = diagnosed(text)
    assert {each.rank: each.operations.seq[-1] for each in found.traces if len(each.operations.seq)}[2] == 99
    stuck = (
        "[rank1]:[F1202 11:25:01.161799497 ProcessGroupXCCLMonitor.cpp:99] [PG ID 0 PG GUID 0(default_pg) Rank 1] Terminating "
        "the process after attempting to dump debug info, due to ProcessGroupxccl watchdog hang."
    )
    done = only("\n".join(["world_size=2", *STEPS, "training complete", stuck]))
    assert (done.cause, done.culprit_ranks) == (Cause.TEARDOWN, ())


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=402, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "line",
    [
        XID,
        f"[ 5234.123456] {XID}",
        f"[Tue Dec  2 11:20:00 2025] {XID}",
        f"Dec  2 11:20:00 cn07 kernel: {XID}",
        f"Dec 02 11:20:00 cn07 kernel: [ 5234.123456] {XID}",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    ],
)
def test_an_error_of_a_gpu_is_a_note_and_changes_no_verdict(line: str) -> None:
    waits = made.log([(rank, timeout_lines("2.6", Stuck(rank, 100))) for rank in range(4)], world=4)
    _, found = diagnosed(f"{line}\n{line}\n{waits}")
    assert verdict(f"{line}\n{line}\n{waits}") == verdict(waits)
    notes = [note for note in found.notes if "Xid 79" in note]
    assert len(notes) == 1
    assert "0000:3b:00" in notes[0]
    assert "rank" not in notes[0]
    assert ("cn07" in notes[0], "process 402" in notes[0]) == ("cn07" in line, "pid=402" in line)


def test_a_note_on_a_gpu_names_the_rank_of_a_process_that_the_launcher_told() -> None:
    _, found = diagnosed("\n".join(["world_size=4", XID, *elastic([(2, -6), (0, -15), (1, -15), (3, -15)])]))
    assert any("used by rank 2: NVIDIA's Xid 79" in note for note in found.notes)


def test_codes_that_programs_bring_about_are_told_so_and_many_are_folded() -> None:
    lines = [XID.replace("79", str(code)) for code in (31, 43, 45, 62, 63, 74, 79)]
    notes = diagnosed("\n".join(["world_size=4", *lines]))[1].notes
    assert [note.rpartition("Xid ")[2] for note in notes[:4]] == ["62", "63", "74", "79"]
    assert "3 more errors of GPUs" in notes[4]
    assert "the program's own doing" in diagnosed(f"world_size=4\n{lines[0]}")[1].notes[0]


def test_a_healthy_job_with_an_error_of_a_gpu_or_the_quote_of_one_stays_healthy() -> None:
    text = "\n".join(["world_size=4", *STEPS, XID, f"user: what is '{XID}'?", *STEPS, "training complete: 120 steps"])
    diagnosis, found = diagnosed(text)
    assert (diagnosis.status, diagnosis.findings) == (Status.HEALTHY, ())
    assert sum("Xid" in note for note in found.notes) == 1
    assert diagnosed(f"world_size=4\nuser: what is '{XID}'?\ntraining complete")[1].notes == ()


def numbered(rank: int) -> str:
    return f"[{rank}] "


def says(prefix: str, lines: list[str]) -> list[str]:
    return [prefix + line for line in lines]


RAISED = traceback(None, "KeyError: 'x'")


@pytest.mark.parametrize("prefix", ["[{}] ", "{}: ", " {}: "])
@pytest.mark.parametrize("speaking", [(0, 1, 2, 3), (0,)])
def test_numbers_that_mpirun_or_srun_put_in_front_are_ranks(prefix: str, speaking: tuple[int, ...]) -> None:
    steps = [prefix.format(rank) + line for line in STEPS for rank in speaking]
    finding = only("\n".join([prefix.format(0) + "world_size=4", *steps, *says(prefix.format(3), RAISED)]))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.EXCEPTION, (3,), Certainty.PROVEN)


def test_such_a_number_in_front_of_a_box_or_a_tree_is_a_rank() -> None:
    for drawing in (BOX, TREE):
        text = "\n".join(["[0] world_size=4", *says("[0] ", STEPS), *says("[3] ", drawing.splitlines())])
        assert only(text).culprit_ranks == (3,)


def test_time_outs_of_old_torch_behind_such_numbers_name_the_rank_that_never_came() -> None:
    parts = [(rank, [*STEPS[:20], *timeout_lines("2.0", Stuck(rank, 100))]) for rank in range(8) if rank != 5]
    finding = only(made.log(parts, numbered, 8).replace("world_size", "[0] world_size"))
    assert finding.culprit_ranks == (5,)


def test_numbers_of_launchers_on_each_node_are_no_ranks() -> None:
    steps = [f"[{rank % 2}] {line}" for rank, line in enumerate(STEPS)]
    finding = only("\n".join(["[0] world_size=16", *steps, *says("[1] ", RAISED)]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, ())


def test_a_programs_own_counter_in_brackets_is_no_rank() -> None:
    memory = "CUDA out of memory. Tried to allocate 2.00 GiB; batch skipped"
    epochs = [f"[{epoch}] {line}" for epoch in range(4) for line in STEPS]
    waits = [line for rank in (0, 1, 2) for line in timeout_lines("2.6", Stuck(rank, 100))]
    _, found = diagnosed("\n".join(["[0] world_size=8", *epochs, f"[3] {memory}", *waits]))
    assert not [claim for claim in found.claims if claim.ranks == (3,)]
    # Few lines with a number (the desync report has such) are of no launcher either.
    few = ["world_size=8", *STEPS, "[3] Traceback (most recent call last):"]
    assert diagnosed("\n".join(few))[0].findings == ()


def test_numbers_are_bounded() -> None:
    random_ = random.Random(1)
    lines = [f"[{random_.randrange(10**6)}] KeyError: x" for _ in range(20_000)]
    assert diagnosed("\n".join(lines))[0].status in (Status.UNKNOWN, Status.CRASH, Status.HEALTHY)
    assert diagnosed(f"{'kernel: ' * 9000}{XID}" + f"\n{XID}, " * 1)[0].status in (Status.UNKNOWN, Status.HEALTHY)
