from __future__ import annotations

import pytest

from desync.evidence.logs.speakers import Speaker, bared, line_shape, parse


def bare(line: str, head: str) -> str:
    return bared(line, line_shape(head))[1]


PDSH = "\n".join(f"gpu-{number % 3}: step {number}" for number in range(20))


@pytest.mark.parametrize(
    ("head", "line", "rest"),
    [
        (PDSH, 'gpu-1:   File "a.py", line 3, in f', '  File "a.py", line 3, in f'),
        (PDSH.replace(": ", "   | "), "gpu-1   | Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("[pod/train-0/pytorch] step 1\n" * 9, "[pod/train-1/pytorch] KeyError: 'x'", "KeyError: 'x'"),
        ("Jun 11 02:10:00 cn07 train.sh[77]: x\n" * 9, "Jun 11 02:10:01 cn07 train.sh[77]: KeyError: 'x'", "KeyError: 'x'"),
        ("", "2026-06-11T02:10:00.123456789Z Traceback (most", "Traceback (most"),
        ("2026-06-11 02:10:00 gpu-1: x\n" * 9, "2026-06-11 02:10:00,5 gpu-1: [rank3]: x", "[rank3]: x"),
    ],
)
def test_what_stands_in_front_of_nearly_all_lines_is_not_the_jobs(head: str, line: str, rest: str) -> None:
    assert bare(line, head) == rest


@pytest.mark.parametrize("line", ["KeyError: 'x'", "torch.OutOfMemoryError: CUDA out", "srun: error: cn07: task 2: Killed"])
def test_exceptions_and_programs_that_are_understood_are_no_hosts(line: str) -> None:
    assert bare(line, PDSH) == line


@pytest.mark.parametrize(
    "head", ["", "a: 1\nb: 2\n", "step 1\nstep 2\nloss: 3\nstep 4\nstep 5\nstep 6\n", "KeyError: 'x'\n" * 9]
)
def test_a_few_lines_with_a_colon_are_no_collectors_work(head: str) -> None:
    assert line_shape(head) is None


def test_a_bar_that_was_glued_to_a_line_is_taken_off_but_a_bar_alone_stays() -> None:
    bar = "Epoch 3:  41%|████▏     | 410/1000 [02:10<03:01,  3.1it/s, loss=1.2]"
    assert bared(f"{bar}Traceback (most recent call last):", None) == (bar, "Traceback (most recent call last):")
    assert bared(bar, None) == ("", bar)


@pytest.mark.parametrize("head", ["[rank6] ", "[rank 6] ", "[Rank 6] ", "[rank: 6] "])
def test_a_rank_that_a_program_puts_in_front_of_its_lines(head: str) -> None:
    assert parse(f"{head}WARNING CUDA out of memory", Speaker()) == (Speaker(rank=6), "WARNING CUDA out of memory")
    assert bare(f"{head}x", f"{head}step 1\n" * 9) == f"{head}x"  # and no collector's


def test_torchs_own_word_on_the_rank_counts_more_than_the_programs() -> None:
    assert parse("[rank3]: [rank 1] is late", Speaker()) == (Speaker(rank=3), "[rank 1] is late")
