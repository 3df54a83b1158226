from __future__ import annotations

import os
from pathlib import Path

import pytest

from desync.evidence.standing import CONSTRUCTION, FORWARD, WAIT, is_loader_worker, is_spawned, rank_and_world, standing
from desync.model import Frame, Kind, RankStacks, Stack

TORCH = "/env/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
LOGGER = f"{TORCH}/distributed/c10d_logger.py"
USER = Frame("main", "/job/train.py", 40)

Values = tuple[tuple[dict[str, str], ...], ...]


def stacks(*frames: Frame, thread: str = "MainThread", beside: tuple[Frame, ...] = ()) -> RankStacks:
    threads = [Stack(thread, frames), *([Stack("trainer", beside)] if beside else [])]
    return RankStacks(0, "py-spy", 1, tuple(threads))


def inside(op: str, own: dict[str, str] | None = None, wrapper: dict[str, str] | None = None) -> tuple[RankStacks, Values]:
    """A call of torch.distributed with its variables, and those of the wrapper around it."""
    frames = (Frame(op, C10D, 3), Frame("_exception_logger.<locals>.wrapper", LOGGER, 83), USER)
    return stacks(*frames), ((own or {}, wrapper or {}, {}),)


GROUP = "<torch._C._distributed_c10d.ProcessGroup at 0x7f>"


@pytest.mark.parametrize(
    ("wrapper", "default"),
    [
        ({"args": "(<Tensor at 0x7f>)", "kwargs": "{}"}, True),
        ({"args": "(<Tensor at 0x7f>)", "kwargs": '{"group": None}'}, True),
        ({"args": "()", "kwargs": f'{{"group": {GROUP}}}'}, False),
        ({"args": f"(<Tensor at 0x7f>, {GROUP})", "kwargs": "{}"}, False),
        ({"args": "(<Tensor at 0x7f>, ...", "kwargs": "{}"}, None),
        ({}, None),
    ],
)
def test_whether_a_group_was_given_is_told_by_what_the_caller_gave(wrapper: dict[str, str], default: bool | None) -> None:
    # In the function itself the default group stands in the variable, whatever was given.
    where = standing(*inside("all_reduce", {"group": GROUP}, wrapper))
    assert where.default_group is default
    assert where.call is not None
    assert (where.call.op, where.call.kind) == ("all_reduce", Kind.COLLECTIVE)
    assert where.call.site is not None
    assert where.call.site.innermost == USER


def test_a_function_without_a_wrapper_keeps_what_it_was_given() -> None:
    frames = (Frame("monitored_barrier", C10D, 3), USER)
    assert standing(stacks(*frames), (({"group": "None"}, {}),)).default_group is True
    assert standing(stacks(*frames), (({"group": GROUP}, {}),)).default_group is None


def test_peers_roots_and_members_come_from_the_calls_variables() -> None:
    call = standing(*inside("recv", {"src": "1", "group": "None"})).call
    assert call is not None
    assert (call.kind, call.peer) == (Kind.P2P, 1)
    call = standing(*inside("send", {"dst": "3"})).call
    assert call is not None
    assert call.peer == 3
    call = standing(*inside("broadcast", {"src": "2"})).call
    assert call is not None
    assert (call.root, call.peer) == (2, None)
    call = standing(*inside("new_group", {"ranks": "[0, 12]"})).call
    assert call is not None
    assert (call.kind, call.members) == (Kind.GROUP, (0, 12))
    call = standing(*inside("new_group", {"ranks": "[0, 1, ..."})).call
    assert call is not None
    assert call.members is None


@pytest.mark.parametrize(
    ("frames", "op"),
    [
        ((Frame("__call__", f"{TORCH}/_ops.py", 1), Frame("wait_tensor", f"{TORCH}/distributed/_f.py", 2), USER), WAIT),
        ((Frame("_sync_buffers", f"{TORCH}/nn/parallel/distributed.py", 2), USER), FORWARD),
        ((Frame("synchronize", f"{TORCH}/cuda/__init__.py", 1), USER), WAIT),
        ((Frame("_verify_param_shape_across_processes", f"{TORCH}/distributed/utils.py", 1), USER), CONSTRUCTION),
        ((Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 1), USER), "backward"),
        ((Frame("forward", f"{TORCH}/nn/modules/linear.py", 1), USER), None),
        ((USER,), None),
        ((), None),
    ],
)
def test_what_waits_without_naming_its_operation(frames: tuple[Frame, ...], op: str | None) -> None:
    call = standing(stacks(*frames)).call
    assert (call.op if call is not None else None) == op


@pytest.mark.parametrize(
    ("line", "waits"),
    [("    work.wait()  # all of it", True), ("    print(loss.item())", True), ("    time.sleep(600)", False), ("", False)],
)
def test_a_line_that_waits_is_told_by_its_source(line: str, waits: bool, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"def main():\n{line}\n")
    assert (standing(stacks(Frame("main", str(program), 2))).call is not None) is waits


def test_sources_are_read_where_the_process_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "relative.py").write_text("work.wait()\n")
    here = stacks(Frame("main", "relative.py", 1))
    assert standing(here).call is None
    monkeypatch.chdir(tmp_path)
    assert standing(here, pid=os.getpid()).call is not None
    absolute = stacks(Frame("main", str(tmp_path / "relative.py"), 1))
    assert standing(absolute, pid=os.getpid()).call is not None
    assert standing(absolute, pid=1 << 30).call is not None, "where the process is gone, here"


def test_writing_a_checkpoint_is_no_call() -> None:
    writes = Frame("write", f"{TORCH}/distributed/checkpoint/filesystem.py", 1)
    assert standing(stacks(writes, USER)).call is None


def test_sources_that_are_no_small_python_file_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x.wait()\n")
    for name, number in ((str(tmp_path / "a.txt"), 1), (str(tmp_path / "none.py"), 1), ("/dev/zero", 1), ("\0.py", 1)):
        assert standing(stacks(Frame("main", name, number))).call is None


def test_another_thread_counts_where_the_main_one_is_in_no_call() -> None:
    where = standing(stacks(Frame("loop", "/job/serve.py", 1), beside=(Frame("barrier", C10D, 1), USER)))
    assert where.call is not None
    assert (where.call.op, where.is_main, where.frames[-1]) == ("barrier", False, USER)


def test_who_a_spawned_process_is() -> None:
    child = stacks(USER, Frame("_wrap", f"{TORCH}/multiprocessing/spawn.py", 90))
    worker = stacks(Frame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 3))
    assert (is_spawned(child), is_loader_worker(child)) == (True, False)
    assert (is_spawned(worker), is_loader_worker(worker)) == (False, True)
    assert rank_and_world((({}, {"i": "3"}),)) == (3, None)
    # Innermost first: the outermost frame's word on the rank counts, and more than the index that spawn gave.
    assert rank_and_world((({"rank": "9"}, {"rank": "5", "world_size": "8"}, {"i": "1"}),)) == (5, 8)
    assert rank_and_world((({"global_rank": "4"}, {"rank": "-1"}),)) == (4, None)
    assert rank_and_world(()) == (None, None)
