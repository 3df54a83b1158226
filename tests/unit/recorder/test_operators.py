"""The arguments of an operator are found by their names, also of one that nobody knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from desync.model import Kind
from desync.recorder.operators import describe

GROUP = "__torch__.torch.classes.c10d.ProcessGroup"


def overload(*arguments: str, kwarg_only: str | None = None) -> Any:
    """Enough of an OpOverload: ``name: type`` for each argument."""
    made = []
    for argument in arguments:
        name, _, kind = argument.partition(": ")
        made.append(SimpleNamespace(name=name, type=kind or "int", kwarg_only=name == kwarg_only))
    return SimpleNamespace(_schema=SimpleNamespace(arguments=made))


def test_known_arguments_are_found_wherever_they_are() -> None:
    operator = describe("broadcast_", overload("tensors: List[Tensor]", f"process_group: {GROUP}", "root_rank", "async_op"))
    assert operator is not None
    assert (operator.public, operator.kind) == ("broadcast", Kind.COLLECTIVE)
    assert (operator.inputs, operator.outputs, operator.group, operator.root, operator.is_async) == (0, None, 1, 2, 3)
    sent = describe("send", overload("tensors", f"process_group: {GROUP}", "dst", "tag"))
    assert sent is not None
    assert (sent.kind, sent.sends, sent.peer, sent.tag, sent.is_async) == (Kind.P2P, True, 2, 3, None)


def test_an_operator_of_the_future_is_recorded_by_its_name() -> None:
    operator = describe("all_shuffle_", overload("things", "where", f"pg: {GROUP}"))
    assert operator is not None
    assert (operator.public, operator.kind, operator.group) == ("all_shuffle", Kind.COLLECTIVE, 2)
    assert (operator.inputs, operator.outputs, operator.root, operator.peer, operator.reduce_op) == (None,) * 5


def test_what_communicates_with_nobody_is_no_operator() -> None:
    assert describe("check_something", overload("tensor: Tensor")) is None
    assert describe("barrier", overload(f"group: {GROUP}", "timeout", kwarg_only="timeout")) is None
