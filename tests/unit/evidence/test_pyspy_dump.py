from __future__ import annotations

import json
from pathlib import Path

import pytest

from desync.diagnosis.claims import interpret
from desync.evidence.mixture import gather
from desync.evidence.pyspy_dump import parse
from desync.evidence.sources import find
from desync.model import Cause, Certainty, Status

BARRIER = """    barrier (torch/distributed/distributed_c10d.py:4800)
    wrapper (torch/distributed/c10d_logger.py:83)
    evaluate (/job/train.py:40)
    main (/job/train.py:77)
    <module> (/job/train.py:90)"""
LOADER = """    wait (threading.py:327)
    get (queue.py:171)
    read_shard (/job/data.py:12)
    main (/job/train.py:70)"""


def process(pid: int, frames: str, command: str = "python train.py") -> str:
    return f'Process {pid}: {command}\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {pid} (idle): "MainThread"\n{frames}\n'


def written(folder: Path, stacks: dict[int, str]) -> Path:
    for rank, frames in stacks.items():
        (folder / f"rank{rank}.pyspy").write_text(process(100 + rank, frames))
    return folder


def test_the_rank_outside_of_the_call_that_the_others_are_in_is_named(tmp_path: Path) -> None:
    evidence = gather(find([str(written(tmp_path, {0: BARRIER, 1: BARRIER, 2: LOADER, 3: BARRIER}))]))
    (finding,) = interpret(evidence).findings
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.HANG, Cause.STALLED_RANK, (2,))
    assert finding.divergence is not None
    waits = finding.divergence.by_rank[0].operation
    assert waits is not None
    assert waits.call.site is not None
    assert (waits.call.op, waits.call.site.innermost.file, waits.call.site.innermost.line) == ("barrier", "/job/train.py", 40)
    assert [stacks.rank for stacks in evidence.stacks] == [0, 1, 2, 3]


def test_one_file_can_hold_all_ranks_if_their_command_lines_tell_them_apart(tmp_path: Path) -> None:
    texts = [process(100 + rank, LOADER if rank == 1 else BARRIER, f"python train.py --rank {rank}") for rank in range(3)]
    (tmp_path / "all.txt").write_text("\n".join(texts))
    assert interpret(gather(find([str(tmp_path)]))).findings[0].culprit_ranks == (1,)


def test_json_is_read_like_text() -> None:
    frames = [{"name": "barrier", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 3}, {"name": 5}, "x"]
    (dumped,) = parse(
        json.dumps([{"thread_name": "T", "frames": frames}, {"frames": None}, {"thread_name": "MainThread", "frames": frames}])
    )
    assert [stack.thread for stack in dumped.threads] == ["MainThread", "T"]
    assert len(dumped.threads[0].frames) == 1


def test_different_calls_seen_in_stacks_alone_are_possible_at_best(tmp_path: Path) -> None:
    other = BARRIER.replace("barrier", "all_reduce").replace(":40", ":51")
    evidence = gather(find([str(written(tmp_path, {0: BARRIER, 1: BARRIER, 2: other, 3: BARRIER}))]))
    (finding,) = interpret(evidence).findings
    assert (finding.culprit_ranks, finding.certainty) == ((2,), Certainty.POSSIBLE)


def test_a_backward_is_a_call_of_its_own(tmp_path: Path) -> None:
    backward = """    _engine_run_backward (x/torch/autograd/graph.py:800)
    backward (x/torch/_tensor.py:600)
    main (/job/train.py:39)"""
    evidence = gather(find([str(written(tmp_path, {0: backward, 1: BARRIER, 2: backward}))]))
    (finding,) = interpret(evidence).findings
    assert (finding.culprit_ranks, finding.certainty) == ((1,), Certainty.POSSIBLE)
    assert finding.divergence is not None
    assert finding.divergence.op == "backward"


@pytest.mark.parametrize("text", ["", "[", "[1]", "Process x", 'Thread 5 (idle): "M"', "[" * 100_000])
def test_what_holds_no_stack_gives_none(text: str) -> None:
    assert parse(text) == []
