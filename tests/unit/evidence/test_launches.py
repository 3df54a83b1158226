"""Operations that torch launches together, and entries that are retired without being over."""

from __future__ import annotations

from typing import Any

import pytest

from desync.diagnosis.claims import interpret
from desync.evidence.flight_recorder.columns import from_dump
from desync.evidence.flight_recorder.merge import merge
from desync.model import Diagnosis, Evidence, Job, Status

from . import dumps as made

Entries = list[dict[str, Any]]
MEMBERS = {"batch": ("send 0->1", "recv 0<-1"), "fsdp": ("_reduce_scatter_base",) * 3, "uneven": ("_broadcast_oop",) * 4}


def launch(kind: str, seq: int, record: int, done: bool = True) -> Entries:
    """Members, which stay "scheduled" for ever, and the carrier with the real state."""
    names = [*MEMBERS[kind], "ALLGATHER_coalesced" if kind == "uneven" else "coalesced"]
    found = []
    for index, name in enumerate(names):
        last = index == len(names) - 1
        each = made.entry(name, seq, done=done and last, record=record + index)
        if kind == "batch":
            each |= {"is_p2p": True, "collective_seq_id": 0, "p2p_seq_id": seq}
        found.append(each)
    return found


def entries(kind: str, count: int, done: bool = True) -> Entries:
    found: Entries = []
    for seq in range(1, count + 1):
        found += launch(kind, seq, len(found), done or seq < count)
    return found


def diagnosed(dumps: dict[int, Entries]) -> Diagnosis:
    merged = merge({rank: from_dump(made.dump(each, world=len(dumps))) for rank, each in dumps.items()})
    return interpret(Evidence(job=Job(world_size=merged.world_size), traces=merged.traces))


@pytest.mark.parametrize("kind", MEMBERS)
def test_what_is_launched_together_is_over_when_its_carrier_is(kind: str) -> None:
    assert diagnosed({rank: entries(kind, 5) for rank in range(2)}).status is Status.HEALTHY


@pytest.mark.parametrize("kind", MEMBERS)
def test_a_launch_is_pending_as_long_as_its_carrier_is(kind: str) -> None:
    found = diagnosed({0: entries(kind, 5, done=False), 1: entries(kind, 4)})
    assert found.status is Status.HANG
    assert found.findings[0].culprit_ranks == (1,)


@pytest.mark.parametrize("kind", MEMBERS)
def test_a_launch_is_over_whose_carrier_was_left_out_as_finished(kind: str) -> None:
    active = [each for each in entries(kind, 5) if each["state"] != "completed"]
    assert all(from_dump(made.dump(active)).completed[index : index + 8] != bytes(8) for index in range(0, 8 * 5, 8))
    assert diagnosed(dict.fromkeys(range(2), active)).status is Status.HEALTHY


def test_a_batch_that_has_not_been_handed_over_is_pending() -> None:
    inside = [*entries("batch", 2), *launch("batch", 3, 6)[:2]]
    assert from_dump(made.dump(inside)).completed[-16:] == bytes(16)


def test_many_carriers_of_one_batch_cost_no_more_than_their_number() -> None:
    members = [made.entry("send 0->1", 1, done=False)] * 20_000
    carrier = made.entry("coalesced", 1) | {"is_p2p": True, "collective_seq_id": 0, "p2p_seq_id": 1}
    assert len(from_dump(made.dump([*members, *[carrier] * 20_000])).call) == 8 * 20_000


def test_an_operation_that_is_retired_and_not_completed_has_timed_out() -> None:
    late = made.entry("all_reduce", 5, done=False, record=5) | {"retired": True}
    dumps = {rank: [*made.steps(4), late] for rank in range(3)} | {3: made.steps(4)}
    found = diagnosed(dumps)
    assert (found.status, found.findings[0].culprit_ranks) == (Status.HANG, (3,))


def test_without_the_field_that_tells_p2p_the_name_does() -> None:
    def old(rank: int) -> Entries:
        chain = [f"send {rank}->{rank + 1}"] * (rank < 3) + [f"recv {rank}<-{rank - 1}"] * (rank > 0)
        names = [*chain, "all_reduce", *chain, "all_reduce"]
        found = [made.entry(name, seq, record=seq) for seq, name in enumerate(names, start=1)]
        for seq, each in enumerate(found, start=1):
            del each["collective_seq_id"], each["p2p_seq_id"], each["is_p2p"]
            each["seq_id"] = seq
        return found

    calls = from_dump(made.dump(old(1))).calls
    assert [call[0].rpartition(":")[2] for call in calls if call[5]] == ["send 1->2", "recv 1<-0"]


def test_a_barrier_has_its_public_name() -> None:
    merged = merge({0: from_dump(made.dump([made.entry("all_reduce_barrier", 1)], world=1))})
    assert merged.traces[0].operations.row(0, 0).call.op == "barrier"
