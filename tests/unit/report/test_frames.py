from __future__ import annotations

from dataclasses import replace

import pytest

from desync.model import Frame, RankStacks, Stack
from desync.report.frames import is_own, main_stack, merge_stacks, user_frames
from desync.report.model import MergedStack
from desync.report.view import telling_stacks
from tests.unit.report.report_samples import BACKWARD, LOOP, SITE_PACKAGES, frame


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/data/ada/project/train.py", True),
        ("/data/ada/torch/train.py", True),
        ("train.py", True),
        ("/srv/job/socket.py", True),
        ("<stdin>", True),
        ("/tmp/ipykernel_7/123.py", True),
        (f"{SITE_PACKAGES}/numpy/core/fromnumeric.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", False),
        ("torch/distributed/distributed_c10d.py", False),
        ("/data/ada/pytorch/torch/autograd/graph.py", False),
        ("threading.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("/opt/env/lib/desync/recorder/hook.py", False),
        ("/run/1/sitecustomize.py", False),
        ("libc.so.6", False),
        ("/usr/bin/python3.11", False),
        ("ProcessGroupGloo.cpp", False),
        ("[vdso]", False),
        ("", False),
    ],
)
def test_whose_frame_it_is(file: str, users: bool) -> None:
    assert Frame("f", file, 1).is_users is users


def test_stacks_are_cut_to_the_users_frames() -> None:
    assert user_frames(BACKWARD) == (*LOOP.frames, frame("<module>", "train.py", 91))


def test_merging_takes_the_newest_sample_of_each_rank() -> None:
    old = RankStacks(0, "py-spy", 1, (Stack("MainThread", (frame("load", "data.py", 3),)),))
    new = replace(old, time=2, threads=(Stack("MainThread", (frame("wait", "data.py", 9),)),))
    twin = replace(new, rank=5)
    last_words = replace(old, source="faulthandler", time=3)

    merged = merge_stacks([new, old, twin, last_words])

    assert [(stack.ranks, stack.source, stack.frames[0].line) for stack in merged] == [
        ((0, 5), "py-spy", 9),
        ((0,), "faulthandler", 3),
    ]


def test_the_main_thread_is_found_by_name_then_by_its_users_frames() -> None:
    pool = Stack("pt_autograd_0", (Frame("run", "libtorch.so", 0),))
    own = Stack("Thread-1", (frame("main", "train.py", 1),))
    main = Stack("MainThread", (Frame("wait", "libc.so.6", 0),))

    assert main_stack(RankStacks(0, "py-spy", None, (pool, own, main))) is main
    assert main_stack(RankStacks(0, "py-spy", None, (pool, own))) is own
    assert main_stack(RankStacks(0, "py-spy", None, ())) is None


def test_the_recorders_own_frames_are_not_shown() -> None:
    own = Frame("_Handles._wrap_wait.<locals>.wait", "/opt/env/lib/python3.11/site-packages/desync/recorder/completion.py", 129)
    user = Frame("main", "/srv/train.py", 3)

    (shown,) = telling_stacks([MergedStack((0,), "py-spy", "MainThread", (own, user))])

    assert shown.frames == (user,)

    written = MergedStack((0,), "faulthandler", "MainThread", (user,))
    assert telling_stacks([MergedStack((0,), "py-spy", "MainThread", (own,)), written]) == [written]
    assert not is_own(Frame("main", "/srv/desync/train.py", 3))
