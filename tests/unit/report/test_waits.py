from __future__ import annotations

from dataclasses import replace

from desync.model import AtDivergence, Call, Divergence, Evidence, Group, Kind, OperationState, Trace
from desync.report.graph import build_graph
from desync.report.model import WaitEntry
from desync.report.waits import build_waits
from tests.unit.report import report_samples as samples
from tests.unit.report.report_samples import GRADIENTS, Step, job, steps, trace

WORLD = Group("default_pg", (0, 1, 2))
TP = Group("tp", (0, 1))
BARRIER = Call("barrier", Kind.COLLECTIVE)


def edges(*traces: Trace, divergence: Divergence | None = None) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
    made = [replace(one, groups={"default_pg": WORLD, "tp": TP}) for one in traces]
    return [
        (edge.ranks, edge.missing, f"{edge.group} {edge.op} {edge.seq}")
        for edge in build_waits(Evidence(job(3), tuple(made)), divergence)
    ]


def test_ranks_inside_wait_for_those_that_have_not_come() -> None:
    inside = steps(GRADIENTS, 3, pending=True)

    assert edges(trace(0, inside), trace(1, steps(GRADIENTS, 3)), trace(2, inside)) == [
        ((0, 2), (1,), "default_pg all_reduce 4"),
    ]
    assert edges(trace(0, inside), trace(2, inside)) == [((0, 2), (1,), "default_pg all_reduce 4")]  # 1 left no record
    assert edges(*(trace(rank, inside) for rank in range(3))) == []


def test_a_cycle_over_two_groups_has_an_edge_each_way() -> None:
    first = [*steps(GRADIENTS, 2), Step(BARRIER, 1, "tp", done=None)]
    second = [*steps(GRADIENTS, 2), Step(GRADIENTS, 3, done=None)]

    assert edges(trace(0, first), trace(1, second), trace(2, second)) == [
        ((1, 2), (0,), "default_pg all_reduce 3"),
        ((0,), (1,), "tp barrier 1"),
    ]


def test_another_call_at_the_same_place_is_no_coming() -> None:
    here, there = Step(GRADIENTS, 1, done=None), Step(BARRIER, 1, done=None)

    assert edges(trace(0, [here]), trace(1, [there]), trace(2, [here])) == [
        ((0, 2), (1,), "default_pg all_reduce 1"),
        ((1,), (0, 2), "default_pg barrier 1"),
    ]


def test_sends_without_their_receive_wait_for_the_peer() -> None:
    sends = samples.deadlock_of_sends().evidence.traces

    assert [(edge.ranks, edge.missing) for edge in build_waits(Evidence(job(2), sends), None)] == [((0,), (1,)), ((1,), (0,))]

    send = replace(GRADIENTS, op="send", kind=Kind.P2P, peer=1, bucket=None)
    receive = replace(send, op="recv", peer=0)
    both = (trace(0, [Step(send, 1, done=None)]), trace(1, [Step(receive, 1, done=None)]))
    assert edges(*both) == []  # they found each other: neither misses the other


def test_a_rendezvous_waits_for_the_absent() -> None:
    standing = {0: AtDivergence(OperationState.WAITING), 1: AtDivergence(OperationState.ABSENT)}
    divergence = Divergence(Group("default_pg", (0, 1)), "rendezvous", 1, "init_process_group", standing)

    assert edges(divergence=divergence) == [((0,), (1,), "default_pg init_process_group 1")]


def test_the_graph_is_drawn_from_two_edges_on_and_while_it_can_be_read() -> None:
    def edge(waiting: tuple[int, ...], missing: tuple[int, ...]) -> WaitEntry:
        return WaitEntry(waiting, missing, Kind.COLLECTIVE, "default_pg", 4, "all_reduce")

    assert build_graph([edge((0,), (1,))], (1,)) is None
    graph = build_graph([edge((0, 2), (1,)), edge((1,), (0,))], (1,))
    assert graph is not None
    assert [(node.label, node.culprit) for node in graph.nodes] == [("0", False), ("1", True), ("2", False)]
    assert len(graph.arrows) == 3
    inside = [(0 <= node.x <= graph.width) and (0 <= node.y <= graph.height) for node in graph.nodes]
    assert all(inside)
    assert len({(node.x, node.y) for node in graph.nodes}) == 3
    assert build_graph([edge((rank,), (rank + 1,)) for rank in range(20)], ()) is None
