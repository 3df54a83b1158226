"""Tracebacks in the boxes of rich 15 and in the trees of Python 3.11's exception groups, as these really print them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from desync.evidence.logs.facts import Traceback
from desync.model import Cause, Diagnosis, Status

from .test_logs import diagnosed, only, read

Says = tuple[str, str, list[tuple[str, int, str]]]

PLAIN = """\
Traceback (most recent call last):
  File "/job/r.py", line 28, in <module>
    inner(1, "loss")
  File "/job/r.py", line 6, in inner
    return d[name]
           ~^^^^^^
KeyError: 'loss'
"""
BOX = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /job/r.py:28 in <module>                                                     │
│                                                                              │
│   27 if "noargs" in sys.argv: raise AssertionError("/other.py:7 in nothing") │
│ ❱ 28 inner(1, "loss")                                                        │
│   29 outer()                                                                 │
│                                                                              │
│ /job/r.py:6 in inner                                                         │
│                                                                              │
│    5 │   d = {"a": [1,2,3]}                                                  │
│ ❱  6 │   return d[name]                                                      │
│    7 def outer():                                                            │
│                                                                              │
│ ╭──────── locals ─────────────────╮                                          │
│ │    d = {'a': [1, 2, 3]}         │                                          │
│ │ name = '/other.py:9 in nothing' │                                          │
│ ╰─────────────────────────────────╯                                          │
╰──────────────────────────────────────────────────────────────────────────────╯
KeyError: 'loss'
"""
ASCII = str.maketrans("╭╮╰╯─│❱", "++++-|?")
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB"
BROKEN = """\
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3
has a total capacity of 79.15 GiB
"""


def ranked(text: str, rank: int = 3) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def moved(text: str) -> str:
    """As a logger of rich's prints it, behind its columns."""
    head = "[11/30/26 17:40:20] ERROR    failed                                      r.py:21\n"
    return head + "".join(f"{'':29}{line}   \n" for line in text.splitlines())


def coloured(text: str) -> str:
    title = "\x1b[31m╭─\x1b[0m\x1b[31m──\x1b[0m\x1b[1;31mTraceback \x1b[0m\x1b[1;2;31m(most recent call last)\x1b[0m"
    text = text.replace(
        "╭───────────────────── Traceback (most recent call last)", title.replace("──\x1b[0m\x1b[1", "─ \x1b[0m\x1b[1")
    )
    return text.replace("│ /job/", "\x1b[31m│\x1b[0m \x1b[2m/job/\x1b[0m").replace("KeyError: ", "\x1b[1;91mKeyError: \x1b[0m")


def raised(text: str) -> list[Traceback]:
    return read(text).facts.tracebacks


def said(text: str) -> list[Says]:
    return [(each.type, each.message.strip(), [(at.file, at.line, at.function) for at in each.frames]) for each in raised(text)]


@pytest.mark.parametrize("drawn", [str, moved, coloured, lambda text: text.translate(ASCII)])
@pytest.mark.parametrize("prefix", [str, ranked, lambda text: ranked(text).replace("[rank3]: ", "[default3]:")])
def test_a_box_says_what_a_plain_traceback_does(drawn: Callable[[str], str], prefix: Callable[[str], str]) -> None:
    text = prefix(drawn(BOX))
    assert said(text) == said(PLAIN)
    assert [each.speaker.rank for each in raised(text)] == [each.speaker.rank for each in raised(prefix(PLAIN))]


def test_the_rank_of_a_box_is_the_culprit_at_its_own_line() -> None:
    finding = only("world_size=4\n" + ranked(BOX))
    assert (finding.status, finding.cause, finding.culprit_ranks) == (Status.CRASH, Cause.EXCEPTION, (3,))
    assert diagnosed("world_size=4\n" + ranked(BOX))[0] == diagnosed("world_size=4\n" + ranked(PLAIN))[0]


def test_a_path_and_a_message_that_rich_has_broken_are_whole_again() -> None:
    long = "/data/" + "very_long_directory/" * 5 + "train.py"
    rows = [f"{long}:28 in <module>"[start : start + 76] for start in (0, 76)]
    box = "\n".join([*BOX.splitlines()[:1], *(f"│ {row:76} │" for row in rows), *BOX.splitlines()[17:18], BROKEN])
    for text in (box, ranked(box)):
        assert said(text) == [("torch.OutOfMemoryError", MEMORY.split(": ", 1)[1], [(long, 28, "<module>")])]
    # The message is known to be that of the traceback, so that nobody has caught it; its end names the device.
    plain = PLAIN.replace("KeyError: 'loss'", MEMORY)
    assert diagnosed(f"world_size=4\n{ranked(box)}")[0].findings[0].cause is Cause.OUT_OF_MEMORY
    assert verdict(f"world_size=4\n{ranked(box)}") == verdict(f"world_size=4\n{ranked(plain)}")


def verdict(text: str) -> list[tuple[Cause, tuple[int, ...], str]]:
    found: Diagnosis = diagnosed(text)[0]
    return [(each.cause, each.culprit_ranks, each.summary) for each in found.findings]


def test_what_follows_a_message_is_not_taken_for_its_end() -> None:
    assert said(BOX + "step 100 loss 1.0\n")[0][1] == "'loss'"
    assert said(ranked(BOX) + "step 100 loss 1.0 " + "x" * 90)[0][1] == "'loss'"
    wide = BOX.replace("─" * 20 + "╮", "─" * 40 + "╮")  # 100 columns: where the terminal ends is not known
    message = "KeyError: " + "x " * 48
    assert said(wide.replace("KeyError: 'loss'", message) + "step 100 loss 1.0\n")[0][1] == message[10:].strip()


def test_of_a_chain_of_boxes_the_first_counts_and_mixed_boxes_are_both_read() -> None:
    between = "\nThe above exception was the direct cause of the following exception:\n\n"
    chain = f"{BOX}{between}{BOX.replace('KeyError', 'ValueError')}"
    assert said(chain) == said(moved(chain)) == said(PLAIN)
    other = BOX.replace("KeyError", "ValueError").splitlines()
    mixed = "\n".join(line for pair in zip(BOX.splitlines(), other, strict=True) for line in pair)
    assert [each[0] for each in said(mixed)] == ["KeyError", "ValueError"]
    apart = "\n".join(
        f"[rank{rank}]: {line}" for pair in zip(BOX.splitlines(), other, strict=True) for rank, line in enumerate(pair)
    )
    assert [(each.speaker.rank, each.type, len(each.frames)) for each in raised(apart)] == [
        (0, "KeyError", 2),
        (1, "ValueError", 2),
    ]


def test_a_box_that_was_cut_does_not_hide_what_comes_after() -> None:
    cut = "\n".join(BOX.splitlines()[:6]) + "\n"
    assert [each[:2] for each in said(ranked(cut + TREE))] == [*(each[:2] for each in LEAVES), ("", "")]
    assert said(PLAIN + cut)[0] == said(PLAIN)[0]


TREE = """\
  + Exception Group Traceback (most recent call last):
  |   File "/job/g.py", line 15, in <module>
  |     main()
  |   File "/job/g.py", line 11, in main
  |     raise ExceptionGroup("outer", [catch(f,1), catch(nest), catch(chained), KeyError("x")])
  | ExceptionGroup: outer (4 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/job/g.py", line 4, in catch
    |     try: fn(*a)
    |          ^^^^^^
    |   File "/job/g.py", line 2, in f
    |     def f(n): raise ValueError(f"leaf {n}")
    |               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    | ValueError: leaf 1
    +---------------- 2 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "/job/g.py", line 6, in nest
    |     def nest(): raise ExceptionGroup("inner", [catch(f,2), TypeError("no tb")])
    |                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    | ExceptionGroup: inner (2 sub-exceptions)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/job/g.py", line 2, in f
      |     def f(n): raise ValueError(f"leaf {n}")
      | ValueError: leaf 2
      +---------------- 2 ----------------
      | TypeError: no tb
      +------------------------------------
    +---------------- 3 ----------------
    | Traceback (most recent call last):
    |   File "/job/g.py", line 8, in chained
    |     try: f(3)
    | ValueError: leaf 3
    |\x20
    | The above exception was the direct cause of the following exception:
    |\x20
    | Traceback (most recent call last):
    |   File "/job/g.py", line 9, in chained
    |     except ValueError as e: raise RuntimeError("from") from e
    | RuntimeError: from
    +---------------- 4 ----------------
    | KeyError: 'x'
    +------------------------------------
"""
LEAVES: list[Says] = [
    ("ValueError", "leaf 1", [("/job/g.py", 2, "f"), ("/job/g.py", 4, "catch")]),
    ("ValueError", "leaf 2", [("/job/g.py", 2, "f")]),
    ("TypeError", "no tb", [("/job/g.py", 6, "nest")]),
    ("ValueError", "leaf 3", [("/job/g.py", 8, "chained")]),
    ("KeyError", "'x'", [("/job/g.py", 11, "main"), ("/job/g.py", 15, "<module>")]),
]


@pytest.mark.parametrize("prefix", [str, ranked])
def test_of_a_group_of_exceptions_the_leaves_count(prefix: Callable[[str], str]) -> None:
    assert said(prefix(TREE) + "step 3\n") == LEAVES
    assert said(prefix(TREE + PLAIN))[5:] == said(PLAIN)


def test_the_rank_of_a_group_is_the_culprit_with_the_first_leaf() -> None:
    finding = only("world_size=4\n" + ranked(TREE))
    assert (finding.cause, finding.culprit_ranks) == (Cause.EXCEPTION, (3,))
    assert "leaf 1" in finding.summary
    victim = TREE.replace("ValueError: leaf 1", "RuntimeError: Connection closed by peer [127.0.0.1]:61300")
    assert "leaf 2" in only("world_size=4\n" + ranked(victim)).summary
    parent = PLAIN.replace("KeyError: 'loss'", "torch.multiprocessing.spawn.ProcessRaisedException: \n")
    spawned = only(f"world_size=4\n{parent}\n-- Process 2 terminated with the following error:\n{TREE}")
    assert spawned.culprit_ranks == (2,)


def test_a_group_that_only_follows_does_not_count() -> None:
    text = f"{PLAIN}\nDuring handling of the above exception, another exception occurred:\n\n{TREE}"
    assert said(text) == said(ranked(text)) == said(PLAIN)


def test_a_group_inside_of_a_leaf_that_only_follows_does_not_count_and_the_next_leaf_does() -> None:
    inner = """
      |
      | During handling of the above exception, another exception occurred:
      |
      | Exception Group Traceback (most recent call last):
      |   File "/job/g.py", line 21, in clean
      | ExceptionGroup: inner (2 sub-exceptions)
      +-+---------------- 1 ----------------
        | OSError: a
        +---------------- 2 ----------------
        | Traceback (most recent call last):
        |   File "/job/g.py", line 22, in g
        | OSError: b
        +------------------------------------"""
    leaf = "      | ValueError: leaf 2"
    assert said(TREE.replace(leaf, leaf + inner)) == LEAVES


@pytest.mark.parametrize("line", range(1, 44))
def test_a_tree_that_is_cut_does_no_harm(line: int) -> None:
    lines = TREE.splitlines()
    for text in ("\n".join(lines[:line]), "\n".join(lines[line:]), "\n".join([*lines[:line], PLAIN])):
        assert {each[0] for each in said(text)} <= {
            "ValueError",
            "TypeError",
            "KeyError",
            "RuntimeError",
            "",
            "ExceptionGroup",
        }


@pytest.mark.parametrize(
    "text",
    [
        BOX.splitlines()[0] + "\n" + "│ /a.py\n" * 50_000,
        (BOX.splitlines()[0] + "\n") * 20_000,
        BOX.splitlines()[0] + "\n" + "│" * 1_000_000,
        "".join(f"[rank{rank}]: {BOX.splitlines()[0]}\n" for rank in range(20_000)),
        "".join(f"[rank{rank}]: {TREE.splitlines()[0]}\n" for rank in range(20_000)),
        BOX + "word\n" * 30_000,
        TREE.splitlines()[0] + "\n" + '  |   File "a.py", line 1, in f\n' * 30_000,
        "\n".join([*TREE.splitlines()[:7], *["    +---------------- 1 ----------------"] * 30_000]),
        " " * 200 + "╭" + "─" * 60_000,
        BOX.splitlines()[0] + "\nValueError: " + "x" * 70 + ("\n" + "y" * 70) * 9000,
    ],
)
def test_no_drawing_is_too_strange(text: str) -> None:
    assert diagnosed(text)[0].status in (Status.UNKNOWN, Status.CRASH, Status.HEALTHY)


def test_boxes_and_trees_in_a_job_that_goes_on_and_ends_well_are_no_fault() -> None:
    steps = "".join(f"step {each} loss 1.0\n" for each in range(60))
    for drawing in (BOX, TREE, ranked(BOX), ranked(TREE)):
        diagnosis, _ = diagnosed(f"world_size=4\n{steps}{drawing}{steps}training complete: 120 steps\n")
        assert (diagnosis.status, diagnosis.findings) == (Status.HEALTHY, ())
    # Tables are drawn with the same characters.
    table = "╭──── run ────╮\n│ /a.py:3 in f │\n╰─────────────╯\n  | loss | 1.0 |\n  +---------------- 1 ----------------\n"
    assert said(f"{table}{PLAIN}{table}") == said(PLAIN)
