from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from desync.model import Frame
from desync.report.text import clean, exit_phrase, place, rank_set, ranks_phrase, seconds, shapes


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ((), ""),
        ((2,), "2"),
        ((3, 1, 0, 1), "0-1,3"),
        ((*range(3), *range(4, 64)), "0-2,4-63"),
        (range(1, 64, 2), "1,3,5,7,9,11,13,… (32)"),
    ],
)
def test_rank_sets(ranks: tuple[int, ...], shown: str) -> None:
    assert rank_set(ranks) == shown


@given(st.sets(st.integers(0, 5000)), st.integers(12, 40))
def test_a_rank_set_fits_its_place(ranks: set[int], limit: int) -> None:
    assert len(rank_set(ranks, limit)) <= max(limit, len("1000-1001,… (5000)"))


def test_one_rank_is_no_ranks() -> None:
    assert (ranks_phrase([2]), ranks_phrase([2, 3])) == ("rank 2", "ranks 2-3")


@given(st.text(st.characters(exclude_categories=[])), st.integers(1, 50))
def test_cleaned_text_is_printable_and_bounded(text: str, limit: int) -> None:
    shown = clean(text, limit)

    assert shown.isprintable()
    assert len(shown) <= 10 * limit


def test_cleaning_shows_what_it_disarms() -> None:
    assert clean("a\x1b[31mb\u202e\r\n c\ud800") == r"a\x1b[31mb\u202e c\ud800"
    assert clean("x" * 9, 4) == "xxx…"


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/data/ada/project/train.py", "train.py:4 in main"),
        ("/data/adamant/train.py", "/data/adamant/train.py:4 in main"),
        ("/env/lib/python3.11/site-packages/torch/nn/a.py", "torch/nn/a.py:4 in main"),
        ("/scratch/" + "deep/" * 20 + "train.py", "…/deep/deep/deep/deep/deep/deep/deep/train.py:4 in main"),
        ("/" + "x" * 90 + ".py", "…" + "x" * 45 + ".py:4 in main"),
    ],
)
def test_places(file: str, shown: str) -> None:
    assert place(Frame("main", file, 4), "/data/ada/project") == shown


def test_a_native_frame_has_no_line() -> None:
    assert place(Frame("poll", "libc.so.6", 0)) == "libc.so.6 in poll"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.84, "0.8 s"), (42.4, "42 s"), (59.9, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_exits_and_shapes() -> None:
    assert [exit_phrase(code) for code in (None, 0, -9, -250)] == [
        "exited",
        "exited 0",
        "killed by SIGKILL",
        "killed by signal 250",
    ]
    assert [shapes(value) for value in (None, ((),), ((4, 8), (2,), (1,)), ((1, 2, 3, 4, 5, 6, 7),))] == [
        "",
        "[]",
        "[4,8] +2",
        "[1,2,3,4,5,6,…]",
    ]
