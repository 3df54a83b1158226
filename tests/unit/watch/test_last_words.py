from __future__ import annotations

import pytest

from desync.watch.last_words import MAX_LINE, MAX_LINES, LastWords

GLOO = (
    b"terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    b"  what():  [enforce fail at pair.cc:456] 4160 vs 4.\n"
)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_what_native_code_says_before_it_ends_its_process_is_kept_however_it_comes(size: int) -> None:
    words = LastWords()
    output = b"epoch 1\n" + GLOO + b"train: train.cpp:12: int main(): Assertion `x > 0' failed.\nwhat happened\n"
    for begin in range(0, len(output), size):
        words.feed(output[begin : begin + size])
    assert words.lines == (
        "what():  [enforce fail at pair.cc:456] 4160 vs 4.",
        "train: train.cpp:12: int main(): Assertion `x > 0' failed.",
    )


def test_they_are_few_and_short_and_of_one_attempt() -> None:
    words = LastWords()
    words.feed(b"  what():  " + b"x" * 100_000 + b"\n")
    for number in range(10):
        words.feed(b"  what():  %d\n" % number)
    assert words.lines == ("what():  6", "what():  7", "what():  8", "what():  9")
    assert len(words.lines) == MAX_LINES
    words.feed(b"  what():  " + b"y" * 2000 + b"\n")
    assert len(words.lines[-1]) <= MAX_LINE
    words.forget()
    assert words.lines == ()
