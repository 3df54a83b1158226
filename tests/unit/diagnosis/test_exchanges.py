"""Sends and recvs of dumps: those that do not fit, and those that a rank without a record has not made."""

from __future__ import annotations

from array import array

import pytest

from desync.diagnosis.claims import interpret
from desync.model import Call, Cause, Certainty, Evidence, Finding, Group, Job, Kind, OperationTable, Status, Tensors, Trace

WORLD = Group("0", (0, 1, 2, 3), "default_pg")
STAGES = [Group("1", (0, 1), "TENSOR"), Group("2", (2, 3), "TENSOR")]
PIPES = [Group("3", (0, 2), "PIPELINE"), Group("4", (1, 3), "PIPELINE")]
GROUPS = {rank: {group.name: group for group in (WORLD, *STAGES, *PIPES) if rank in group.ranks} for rank in range(4)}


def collective(rank: int) -> tuple[str, Call]:
    return STAGES[rank // 2].name, Call("all_gather", Kind.COLLECTIVE, inputs=Tensors(((8,),), ("float32",)))


def exchange(rank: int, size: int = 8, dtype: str = "float32") -> tuple[str, Call]:
    """The first stage sends to the second."""
    tensors = Tensors(((size,),), (dtype,))
    op, peer = ("send", rank + 2) if rank < 2 else ("recv", rank - 2)
    return PIPES[rank % 2].name, Call(op, Kind.P2P, inputs=tensors, outputs=tensors, peer=peer)


def trace(rank: int, operations: list[tuple[str, Call]], done: int) -> Trace:
    calls = list(dict.fromkeys(call for _, call in operations))
    names = list(dict.fromkeys(group for group, _ in operations))
    counts: dict[tuple[str, Kind], int] = {}
    seqs = []
    for group, call in operations:
        counts[(group, call.kind)] = counts.get((group, call.kind), 0) + 1
        seqs.append(counts[(group, call.kind)])
    size = len(operations)
    table = OperationTable(
        calls=tuple(calls),
        groups=tuple(names),
        call=array("q", [calls.index(call) for _, call in operations]),
        group=array("q", [names.index(group) for group, _ in operations]),
        seq=array("q", seqs),
        thread=array("q", [0] * size),
        entered=array("q", [1000 + 10 * index for index in range(size)]),
        returned=array("q", [0] * size),
        completed=array("q", [5000 + index if index < done else 0 for index in range(size)]),
    )
    return Trace(rank, table, groups=GROUPS[rank], world_size=4)


def findings(*traces: Trace) -> tuple[Finding, ...]:
    return tuple(interpret(Evidence(job=Job(world_size=4), traces=traces)).findings)


@pytest.mark.parametrize(("size", "dtype"), [(9, "float32"), (8, "float16")])
def test_a_send_that_does_not_fit_its_recv_is_a_mismatch_of_whoever_did_otherwise_before(size: int, dtype: str) -> None:
    usual = [exchange(2) for _ in range(5)]
    odd = [*(exchange(0) for _ in range(4)), exchange(0, size, dtype)]
    (finding,) = findings(trace(0, odd, done=5), trace(2, usual, done=5), trace(1, [], done=0), trace(3, [], done=0))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.MISMATCH, Cause.ARGUMENT_MISMATCH, (0,))
    assert finding.divergence is not None
    assert (finding.divergence.kind, finding.divergence.seq, finding.divergence.op) == ("p2p", 5, "send")


def test_a_pair_without_a_past_is_a_mismatch_of_nobody_and_many_misfits_are_wrong_numbering() -> None:
    rest = (trace(1, [], done=0), trace(3, [], done=0))
    (finding,) = findings(trace(0, [exchange(0, 9)], done=1), trace(2, [exchange(2)], done=1), *rest)
    assert finding.culprit_ranks == ()
    sizes = [4, 5, 6, 7]
    shifted = [trace(rank, [exchange(rank, size + rank) for size in sizes], done=4) for rank in (0, 2)]
    assert findings(*shifted, *rest) == ()


def test_of_what_waits_for_a_rank_without_a_record_the_exchange_comes_first_if_its_like_was_made_before_the_rest() -> None:
    # Rank 1 left nothing. Rank 0 has sent and waits in the tensor group; rank 3 waits for rank 1's send.
    def step(rank: int) -> list[tuple[str, Call]]:
        return [collective(rank), exchange(rank), collective(rank)]

    first, second = trace(0, step(0), done=2), trace(2, step(2), done=2)
    (finding,) = findings(first, second, trace(3, step(3)[:2], done=1))
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.UNKNOWN, (1,), Certainty.POSSIBLE)
    assert finding.divergence is not None
    assert (finding.divergence.group.ranks, finding.divergence.op) == ((1, 3), "send")
    # Had rank 3 got what rank 1 sends, the tensor group would be the place.
    (finding,) = findings(first, trace(2, step(2), done=3), trace(3, step(3), done=3))
    assert finding.culprit_ranks == (1,)
    assert finding.divergence is not None
    assert (finding.divergence.group.ranks, finding.divergence.op) == ((0, 1), "all_gather")
