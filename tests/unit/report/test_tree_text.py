from __future__ import annotations

from desync.model import Frame
from desync.report.model import MergedStack
from desync.report.tree_text import MAX_DEPTH, tree_lines

ROOT = "/job"
MAIN = Frame("<module>", "/job/train.py", 90)
TRAIN = Frame("train", "/job/train.py", 40)
LOAD = Frame("load", "/job/data.py", 7)
REDUCE = Frame("all_reduce", "/env/site-packages/torch/distributed/distributed_c10d.py", 3)
WRAPPER = Frame("wrapper", "/env/site-packages/torch/distributed/c10d_logger.py", 83)


def stack(*frames: Frame, ranks: tuple[int, ...], thread: str = "MainThread") -> MergedStack:
    return MergedStack(ranks, "py-spy", thread, frames)


def shown(*stacks: MergedStack, culprits: tuple[int, ...] = ()) -> list[str]:
    return ["  " * line.depth + line.text for line in tree_lines(stacks, culprits, ROOT)]


def test_what_ranks_share_is_told_once_and_outliers_come_first() -> None:
    waits = stack(REDUCE, WRAPPER, TRAIN, MAIN, ranks=(0, 1, 3))
    assert shown(waits, stack(LOAD, TRAIN, MAIN, ranks=(2,)), culprits=(2,)) == [
        "ranks 0-3",
        "  train.py:90 in <module>",
        "  train.py:40 in train",
        "  rank 2",
        "    data.py:7 in load",
        "  ranks 0-1,3",
        "    torch/distributed/distributed_c10d.py:3 in all_reduce",
    ]


def test_libraries_between_the_users_frames_are_left_out_and_only_the_users_are_strong() -> None:
    lines = tree_lines([stack(REDUCE, WRAPPER, TRAIN, ranks=(0,))], (), ROOT)
    strong = [(line.text.rpartition(" ")[2], line.strong) for line in lines]
    assert strong == [("0", True), ("train", True), ("all_reduce", False)]


def test_other_threads_have_trees_of_their_own() -> None:
    assert shown(stack(LOAD, ranks=(0,), thread="loader"), stack(TRAIN, ranks=(0,))) == [
        "rank 0",
        "  train.py:40 in train",
        "rank 0, thread loader",
        "  data.py:7 in load",
    ]


def test_without_stacks_there_is_nothing() -> None:
    assert shown() == []


def test_a_tree_that_goes_on_parting_stays_on_the_page() -> None:
    frames = [Frame(f"f{line}", "/job/deep.py", line) for line in range(1, 31)]
    stacks = [stack(*reversed(frames[:depth]), ranks=(depth,)) for depth in range(1, 30)]
    assert max(line.depth for line in tree_lines(stacks, (), ROOT)) <= MAX_DEPTH + 1
