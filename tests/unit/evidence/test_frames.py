from __future__ import annotations

import pytest

from desync.evidence.frames import MAX_FRAMES, call_site

TORCH = ("all_reduce", "/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", 3252)
LIBRARY = ("run", "/usr/lib/python3.12/threading.py", 975)
INSTALLED = ("step", "/env/lib/python3.12/site-packages/lightning/loop.py", 40)
NATIVE = ("pthread_cond_wait", "libc.so.6", 0)
OWN = ("train", "/job/train.py", 7)


@pytest.mark.parametrize(
    ("frames", "kept"),
    [
        ([TORCH, INSTALLED, OWN, LIBRARY], [OWN]),
        ([TORCH, INSTALLED, LIBRARY], [INSTALLED]),  # nothing of the user's is left
        ([TORCH, OWN, INSTALLED, OWN], [OWN, OWN]),
        ([NATIVE, ("??", "", 0), TORCH, OWN], [OWN]),
        ([("f", "/job/torch_tricks/a.py", 1)], [("f", "/job/torch_tricks/a.py", 1)]),
    ],
)
def test_the_users_frames_are_kept(frames: list[tuple[str, str, int]], kept: list[tuple[str, str, int]]) -> None:
    site = call_site(frames)
    assert site is not None
    assert [(frame.function, frame.file, frame.line) for frame in site.frames] == kept


def test_a_stack_of_machinery_has_no_site_and_a_deep_one_is_cut() -> None:
    assert call_site([TORCH, LIBRARY, ("<module>", "<string>", 1), ("<module>", "/env/bin/torchrun", 8)]) is None
    assert call_site([]) is None
    deep = call_site([OWN] * 100)
    assert deep is not None
    assert len(deep.frames) == MAX_FRAMES
