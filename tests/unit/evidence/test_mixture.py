from __future__ import annotations

from pathlib import Path

from desync.diagnosis.claims import interpret
from desync.evidence.mixture import gather
from desync.evidence.sources import find
from desync.model import Cause

from . import dumps as made
from .log_samples import Stuck, timeout_lines
from .log_samples import log as log_of
from .test_flight_recorder import waiting


def test_a_log_explains_the_rank_that_the_dumps_only_miss(tmp_path: Path) -> None:
    made.write(tmp_path / "dumps", waiting([0, 1, 3]))
    (tmp_path / "train.log").write_text(
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/job/train.py", line 7, in main\n'
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n"
    )
    evidence = gather(find([str(tmp_path)]))
    assert [trace.rank for trace in evidence.traces] == [0, 1, 2, 3]
    (finding,) = interpret(evidence).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.OUT_OF_MEMORY, (2,))


def test_dumps_record_operations_better_than_a_log(tmp_path: Path) -> None:
    made.write(tmp_path / "dumps", {**waiting([0, 1, 3]), 2: made.dump(made.steps(4))})
    (tmp_path / "train.log").write_text(log_of([(rank, timeout_lines("2.6", Stuck(rank, 5))) for rank in (0, 1, 3)], world=4))
    evidence = gather(find([str(tmp_path)]))
    trace = evidence.trace(0)
    assert trace is not None
    assert len(trace.operations) == 5
    assert trace.failure is not None  # the time-out that the log tells of
    (finding,) = interpret(evidence).findings
    assert finding.culprit_ranks == (2,)


def test_numbered_logs_speak_for_their_ranks_but_processes_numbers_do_not(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank:02d}.log").write_text(f"step {rank}\n" + ("KeyError: 'x'\n" if rank != 2 else ""))
    (tmp_path / "rank02.log").write_text("Traceback (most recent call last):\nKeyError: 'two'\n")
    nccl = tmp_path / "nccl"
    nccl.mkdir()
    for pid in (193425, 193426, 75406):
        (nccl / f"node.{pid}.log").write_text("node:1:2 [0] NCCL INFO nothing\n")
    (finding,) = interpret(gather(find([str(tmp_path)]))).findings
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (2,))


def test_torchruns_folders_count_on_their_node(tmp_path: Path) -> None:
    for local in range(2):
        folder = tmp_path / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(
            "world_size=2\n" + ("Traceback (most recent call last):\nKeyError: 'x'\n" if local else "")
        )
    (finding,) = interpret(gather(find([str(tmp_path)]))).findings
    assert finding.culprit_ranks == (1,)
