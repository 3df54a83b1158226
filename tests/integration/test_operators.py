"""Every operator of ``torch.distributed``, called once in a real job, is in the journal as it was called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest

from desync.model import Call, Kind, MarkKind, Operation, Trace
from tests.integration import jobs
from tests.integration.jobs import at

pytestmark = pytest.mark.job

PROGRAM = jobs.PROGRAMS / "operators.py"
WORLD = "default_pg"


@dataclass(frozen=True)
class Expected:
    """What the test demands of one operation; shapes are of what goes in and of what comes out."""

    op: str
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float32"
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    is_async: bool | None = False
    group: str = WORLD

    def check(self, operation: Operation) -> None:
        call = operation.call
        seen = Expected(
            op=call.op,
            inputs=call.inputs.shapes,
            outputs=call.outputs.shapes,
            dtype=call.inputs.dtype or call.outputs.dtype or "float32",
            reduce_op=call.reduce_op,
            root=call.root,
            peer=call.peer,
            tag=call.tag,
            splits=(call.in_splits, call.out_splits) if call.in_splits is not None and call.out_splits is not None else None,
            is_async=call.is_async,
            group=operation.group,
        )
        assert seen == self


def p2p(op: str, elements: int, peer: int | None, tag: int = 0, **more: str) -> Expected:
    return Expected(op, ((elements,),), peer=peer, tag=tag, **more)  # type: ignore[arg-type]  # group or dtype


def collectives(rank: int) -> dict[str, list[Expected]]:
    two = ((2,), (2,))
    root = rank == 1
    splits = ((1, 3), (1, 2)) if rank == 0 else ((2, 2), (3, 2))
    return {
        "all_reduce": [Expected("all_reduce", ((4,),), reduce_op="sum")],
        "all_reduce_max": [Expected("all_reduce", ((5,),), dtype="int64", reduce_op="max")],
        "all_reduce_product": [Expected("all_reduce", ((4,),), dtype="float64", reduce_op="product")],
        "all_reduce_async": [Expected("all_reduce", ((6,),), reduce_op="sum", is_async=True)],
        "broadcast": [Expected("broadcast", ((7,),), root=1)],
        "broadcast_async": [Expected("broadcast", ((7,),), root=0, is_async=True)],
        "reduce": [Expected("reduce", ((3,),), reduce_op="min", root=1)],
        "all_gather": [Expected("all_gather", ((2,),), two)],
        "all_gather_into_tensor": [Expected("all_gather_into_tensor", ((4,),), ((8,),))],
        "reduce_scatter": [Expected("reduce_scatter", two, ((2,),), reduce_op="sum")],
        "reduce_scatter_tensor": [Expected("reduce_scatter_tensor", ((6,),), ((3,),), reduce_op="sum")],
        "gather": [Expected("gather", ((2,),), two if root else (), root=1)],
        "scatter": [Expected("scatter", two if root else (), ((2,),), root=1)],
        "all_to_all_single": [Expected("all_to_all_single", ((4,),), ((4,),))],
        "all_to_all_splits": [Expected("all_to_all_single", ((4,),), ((3 if rank == 0 else 5,),), splits=splits)],
        "all_to_all": [Expected("all_to_all", two, two)],
        "barrier": [Expected("barrier")],
        "barrier_async": [Expected("barrier", is_async=True)],
        "monitored_barrier": [Expected("monitored_barrier")],
        "all_reduce_coalesced": [Expected("all_reduce_coalesced", ((2,), (3,)), reduce_op="sum")],
        "all_gather_coalesced": [Expected("all_gather_coalesced", ((2,),), two)],
        "coalescing_manager": [Expected("all_reduce_coalesced", ((9,), (10,)), reduce_op="sum")],
    }


def point_to_point(rank: int) -> dict[str, list[Expected]]:
    other = 1 - rank
    if rank == 0:
        ordered = {
            "send": [p2p("send", 2, other, tag=5)],
            "isend": [p2p("send", 3, other)],
            "recv_any": [p2p("recv_any_source", 4, None)],
        }
    else:
        ordered = {
            "recv": [p2p("recv", 2, other, tag=5)],
            "irecv": [p2p("recv", 3, other)],
            "send_back": [p2p("send", 4, other)],
        }
    return {**ordered, "batch": [p2p("send", 6, other), p2p("recv", 6, other)]}


def functionals() -> dict[str, list[Expected]]:
    return {
        "functional_all_reduce": [Expected("all_reduce", ((11,),), reduce_op="sum", is_async=True)],
        "functional_all_gather": [Expected("all_gather_into_tensor_coalesced", ((2,),), ((4,),), is_async=True)],
        "functional_reduce_scatter": [
            Expected("reduce_scatter_tensor_coalesced", ((4,),), ((2,),), reduce_op="sum", is_async=True)
        ],
        "functional_all_to_all": [Expected("all_to_all_single", ((4,),), ((4,),), splits=((2, 2), (2, 2)), is_async=True)],
        "functional_broadcast": [Expected("broadcast", ((3,),), root=1, is_async=True)],
        "no_grad": [Expected("all_reduce", ((12,),), reduce_op="sum")],
        "inference_mode": [Expected("all_reduce", ((13,),), reduce_op="sum")],
    }


def groups(rank: int) -> dict[str, list[Expected]]:
    """The operations on subgroups and from a second thread; group names are torch's own numbers."""
    transfer = p2p("send", 16, 1, group="2") if rank == 0 else p2p("recv", 16, 0, group="2")
    return {
        "subgroup_broadcast": [Expected("broadcast", ((14,),), root=1, group="2")],
        "subgroup_alone": [Expected("all_reduce", ((15,),), reduce_op="sum", group=str(3 + rank))],
        "subgroup_send" if rank == 0 else "subgroup_recv": [transfer],
        "thread": [Expected("all_reduce", ((17,),), reduce_op="sum", group="1")],
        "beside_thread": [Expected("all_reduce", ((18,),), reduce_op="sum")],
        "ddp_backward": [Expected("all_reduce", ((8,),), reduce_op="sum", is_async=True)],
    }


OBJECTS = {
    "all_gather_object": "all_gather",
    "broadcast_object": "broadcast",
    "gather_object": "gather",
    "scatter_object": "scatter",
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> jobs.Finished:
    finished = jobs.torchrun(PROGRAM, tmp_path_factory.mktemp("run"))
    assert finished.status == 0, finished.output
    return finished


both_ranks = pytest.mark.parametrize("rank", [0, 1])


@both_ranks
def test_each_operation_is_recorded_as_it_was_called_at_its_line(job: jobs.Finished, rank: int) -> None:
    trace = job.traces[rank]
    seen = jobs.by_marker(jobs.operations(trace), PROGRAM)
    for expected in (collectives(rank), point_to_point(rank), functionals(), groups(rank)):
        for marker, wanted in expected.items():
            assert len(seen[marker]) == len(wanted), marker
            for want, operation in zip(wanted, seen[marker], strict=True):
                want.check(operation)
    assert trace.notes == ()
    assert job.notes == ()
    assert (trace.dropped, trace.world_size) == (0, 2)


@both_ranks
def test_object_collectives_are_recorded_by_what_they_are_made_of(job: jobs.Finished, rank: int) -> None:
    seen = jobs.by_marker(jobs.operations(job.traces[rank]), PROGRAM)
    for marker, op in OBJECTS.items():
        calls = [operation.call for operation in seen[marker]]
        assert len(calls) >= 2, marker
        assert op in {call.op for call in calls}
        assert all(call.root == 1 for call in calls if call.op == op and op != "all_gather")
    transfer = seen["send_object" if rank == 0 else "recv_object"]
    assert {(operation.call.op, operation.call.peer) for operation in transfer} == {("send" if rank == 0 else "recv", 1 - rank)}


@both_ranks
def test_compiled_functions_are_recorded_in_the_function_that_was_compiled(job: jobs.Finished, rank: int) -> None:
    recorded = jobs.operations(job.traces[rank])
    for shape, function, reduce_op in ((19, "compiled_eager", "sum"), (20, "compiled_aot", "max")):
        calls = [operation.call for operation in recorded if operation.call.inputs.shapes == ((shape,),)]
        assert len(calls) == 1
        assert (calls[0].op, calls[0].reduce_op, calls[0].is_async) == ("all_reduce", reduce_op, True)
        assert calls[0].site is not None
        innermost = calls[0].site.innermost
        assert (innermost.function, innermost.file) == (function, str(PROGRAM))


@both_ranks
def test_rows_are_in_the_programs_order_and_sequences_have_no_gap(job: jobs.Finished, rank: int) -> None:
    recorded = jobs.operations(job.traces[rank])
    lines = [(at(operation, PROGRAM), operation) for operation in recorded if operation.call.kind is not Kind.GROUP]
    markers = list(dict.fromkeys(marker for marker, _ in lines if marker and marker not in ("thread", "beside_thread")))
    order = [name for name in jobs.markers(PROGRAM) if name in markers]
    assert markers == order
    counters: dict[object, Callable[[], int]] = {}
    for operation in recorded:
        expected = counters.setdefault(_sequence(operation, rank), count(1).__next__)()
        assert operation.seq == expected, operation
    assert [operation.entered or 0 for operation in recorded] == sorted(operation.entered or 0 for operation in recorded)


def _sequence(operation: Operation, rank: int) -> object:
    """What numbers an operation: its group, the pair of a p2p operation, or the calls about groups."""
    call = operation.call
    if call.kind is Kind.P2P:
        return operation.group, call.op == "send", call.peer
    return operation.group, call.kind


@both_ranks
def test_calls_about_groups_are_recorded_with_their_members(job: jobs.Finished, rank: int) -> None:
    trace = job.traces[rank]
    calls = [
        (at(operation, PROGRAM), operation.call.op, operation.call.members)
        for operation in jobs.operations(trace)
        if operation.call.kind is Kind.GROUP
    ]
    assert calls == [
        ("init", "init_process_group", None),
        ("new_group", "new_group", (0, 1)),
        ("new_group_reversed", "new_group", (1, 0)),
        ("new_group_alone", "new_group", (0,)),
        ("new_group_alone", "new_group", (1,)),
        ("destroy_subgroup", "destroy_process_group", (1, 0)),
        ("destroy", "destroy_process_group", None),
    ]
    assert {name: group.ranks for name, group in trace.groups.items()} == {
        WORLD: (0, 1),
        "1": (0, 1),
        "2": (1, 0),
        str(3 + rank): (rank,),
    }
    assert trace.groups["1"].description == "second thread"
    assert all(group.backend is not None and "gloo" in group.backend for group in trace.groups.values())


@both_ranks
def test_what_completed_is_known_to_have_completed(job: jobs.Finished, rank: int) -> None:
    recorded = jobs.operations(job.traces[rank])
    assert [operation for operation in recorded if operation.pending or operation.failed] == []
    unknown = [operation for operation in recorded if operation.completed is None]
    # Its work has no future, and C++ waits for it: nothing tells, and the record says so.
    assert {at(operation, PROGRAM) for operation in unknown} == {"functional_reduce_scatter"}
    assert not any(operation.call.completion_known for operation in unknown)


def test_threads_and_the_reducer_are_told_apart(job: jobs.Finished) -> None:
    trace = job.traces[0]
    seen = jobs.by_marker(jobs.operations(trace), PROGRAM)
    main, other = seen["beside_thread"][0].thread, seen["thread"][0].thread
    assert main == trace.pid != other
    call: Call = seen["ddp_backward"][0].call
    assert call.bucket == "DDP bucket 0: weight, bias"
    assert [mark.left is not None for mark in jobs.marks(trace, MarkKind.FORWARD, MarkKind.BACKWARD)] == [True, True]


def test_both_ranks_number_their_operations_alike(job: jobs.Finished) -> None:
    def numbered(trace: Trace) -> list[tuple[str, int, str, object]]:
        return [
            (operation.group, operation.seq, operation.call.op, operation.call.reduce_op)
            for operation in jobs.operations(trace)
            if operation.call.kind is Kind.COLLECTIVE and operation.group in (WORLD, "2")
        ]

    assert numbered(job.traces[0]) == numbered(job.traces[1])


def test_the_journal_is_private(job: jobs.Finished) -> None:
    folder = job.folder / "journals"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
