"""Who says a line: what launchers and torch put in front of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import islice, pairwise


@dataclass(frozen=True, slots=True)
class Speaker:
    """All that is known of who wrote a line; only ``rank`` is sure to be the rank in the job."""

    rank: int | None = None
    """From torch's own ``[rankN]:``, or mpirun's tag."""
    task: int | None = None
    """srun's label, or that of Intel MPI's mpirun: the rank, or the node where each has a launcher of its own."""
    local: int | None = None
    """torchrun's ``[default3]:``: the rank on its node."""
    pid: int | None = None
    file: int = 0
    """Number of the file."""
    file_rank: int | None = None
    """From a file's name that says "rank"."""
    file_number: int | None = None
    """The number in the name of a file that is one of a set: a rank or a node."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line without what stands in front of it."""

    speaker: Speaker
    text: str
    order: int
    time: int | None
    tree: int | None = None
    """For a line of a group of exceptions where that begins."""


_PREFIXES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\[rank(\d{1,6})\]:\s?"), "rank"),
    (re.compile(r"\[(?:[\w.-]{1,100}@)?\d{1,9},(\d{1,6})\]<std(?:out|err)>:\s?"), "rank"),
    (re.compile(r"\[[A-Za-z_]{1,32}(\d{1,5})\]:\s?"), "local"),
    (re.compile(r"\s{0,6}(\d{1,5}): "), "task"),
    (re.compile(r"\((?:VllmWorker rank=|Worker_[TP]P)(\d{1,6})(?:_EP\d{1,6})? pid=\d{1,9}\)\s?"), "rank"),
    (re.compile(r"\([\w.<>:]{1,100} pid=(\d{1,9})(?:, ip=[\d.:a-f]+)?\)\s?"), "pid"),
)
_OWN_WORDS = re.compile(r"\[[Rr]ank[:=]? ?(\d{1,6})\] ")
"""What programs put in front of their own lines (Lightning: ``[rank: 0] ``); where torch names a rank, that counts."""
_LOGGED = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]{1,100}\.py:\d{1,6}\] ?")
"""What vLLM repeats in front of every line of a message, those of a traceback included."""
_CRI = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) (stdout|stderr) ([FP]) ")
_INNER_RANK = re.compile(r"\[rank(\d{1,6})\]:")
_NCCL_HEAD = re.compile(r"([\w.-]{1,100}):(\d{1,9}):\d{1,9} \[(\d{1,3})\]")
MAX_PREFIXES = 6
_GLUED = re.compile(
    r"(?:\[[A-Za-z_]{1,32}\d{1,6}\]:\s?){0,3}\[[EWIF](?:\d{3,4} [\d:.]{8,18} ?| )?[\w./-]{1,80}\.cpp:\d"
    r"|\[rank\d{1,6}\]: (?:Traceback \(most|  File \")"
)
"""Where another message begins within a line: its writer came between the text and the line feed of the one before."""
MAX_GLUED = 64
"""Messages that are looked for in one line; the last one keeps the rest."""
_BEGINNINGS = frozenset("[( 0123456789")
_LEVELS = frozenset("DIWEC")

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_TIME = re.compile(rf"(?:{_STAMP}|\[{_STAMP}\])[ \t]")
_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        r"\[(?!rank\d)(?:pod/)?[\w.-]{1,100}(?:/[\w.-]{1,100})*\] ",  # kubectl logs --prefix, clush
        r"[\w.-]{1,100} *\| ",  # docker compose
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,100} [\w./-]{1,60}(?:\[\d{1,9}\])?: ",  # the system's journal
        r"(?!\d{1,5}: )[\w.-]{1,100}: ",  # pdsh; a number alone is srun's label
    )
)
_NUMBERED = re.compile(r"\[(\d{1,6})\] ")
_LAUNCHERS_WORDS = re.compile(
    r"(?:Traceback \(most|  \+ Exception Group|╭─+ Traceback|  File \"|\[rank\d|\[[EWF](?:\d{3,4} | |[\w./-]{1,80}\.cpp))"
)
"""What no program prints behind a number of its own (an epoch, a worker): Python and torch write it at a line's beginning."""
_NO_HOST = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning|Interrupt|Exit)?: |(?:srun|slurmstepd|wandb|kernel): ")
"""What is written like the name of a host and is none: exceptions and the programs whose lines are understood."""
ENOUGH = 0.8
LEAST_LINES = 5
_BAR = re.compile(r".{0,120}?\d{1,3}%\|[^|]{0,200}\| ?[^\[|]{0,40}\[[^\]]{0,200}\]\s?(?=\S)")


def line_shape(head: str) -> re.Pattern[str] | None:
    """What a collector of logs (pdsh, docker compose, kubectl, the journal) puts in front of nearly every line, if one did."""
    lines = [line for text in head.split("\n") if (line := _TIME.sub("", text, count=1)).strip()]
    if len(lines) < LEAST_LINES:
        return None
    for shape in _SHAPES:
        if sum(_fits(shape, line) is not None for line in lines) >= ENOUGH * len(lines):
            return shape
    return None


def numbers_tasks(head: str) -> bool:
    """Whether the numbers in brackets before nearly all lines (``mpirun -prepend-rank`` of Intel MPI and MPICH) are processes.

    A program's own counter grows; the lines of several processes are mixed.
    """
    lines = [line for text in head.split("\n") if (line := _TIME.sub("", text, count=1)).strip()]
    numbers = [int(found[1]) for line in lines if (found := _NUMBERED.match(line)) is not None]
    return len(numbers) >= max(LEAST_LINES, ENOUGH * len(lines)) and numbers != sorted(numbers)


def task_number(in_front: str, rest: str, sure: bool) -> int | None:
    """The number in brackets that was taken off a line's beginning, if the file (``sure``) or what follows says so."""
    if not in_front.endswith("] ") or (found := _NUMBERED.search(in_front, max(0, len(in_front) - 10))) is None:
        return None
    return int(found[1]) if found.end() == len(in_front) and (sure or _LAUNCHERS_WORDS.match(rest) is not None) else None


def _fits(shape: re.Pattern[str], line: str) -> re.Match[str] | None:
    found = shape.match(line)
    return None if found is None or _NO_HOST.match(line) is not None else found


def bared(line: str, shape: re.Pattern[str] | None) -> tuple[str, str]:
    """A line in two parts: what no process of the job has written (times, hosts, a bar that was glued to it), and the rest."""
    start = found.end() if (found := _TIME.match(line)) is not None else 0
    if shape is not None and (found := _fits(shape, line[start:])) is not None:
        start += found.end()
        start += found.end() if (found := _TIME.match(line[start:])) is not None else 0
    if "%|" in line and (found := _BAR.match(line, start)) is not None:
        start = found.end()
    return line[:start], line[start:]


def parse(line: str, base: Speaker) -> tuple[Speaker, str]:
    """Who says the line, and what is left of it.  ``base`` is what the file's name tells."""
    speaker, rest = base, line
    if not line[:1] or line[0] not in _BEGINNINGS:
        return _with_inner(speaker, rest)
    for _ in range(MAX_PREFIXES):
        for pattern, field in _PREFIXES:
            if (found := pattern.match(rest)) is not None:
                speaker = replace(speaker, **{field: int(found[1])})
                rest = rest[found.end() :]
                break
        else:
            found = _OWN_WORDS.match(rest) if speaker.rank is None else None
            if found is None:
                break
            speaker, rest = replace(speaker, rank=int(found[1])), rest[found.end() :]
    if rest is not line and rest[:1] in _LEVELS and (found := _LOGGED.match(rest)) is not None:
        rest = rest[found.end() :]
    return _with_inner(speaker, rest)


def unglued(speaker: Speaker, rest: str) -> list[tuple[Speaker, str]]:
    """The messages in one line, each with who says it; nearly always that is one."""
    if "[rank" not in rest and rest.count(".cpp:") < 2:
        return [(speaker, rest)]
    places = [found.start() for found in islice(_GLUED.finditer(rest, 1), MAX_GLUED - 1)]
    pieces = [rest[start:stop] for start, stop in pairwise((0, *places, len(rest)))]
    return [(speaker, pieces[0]), *(_speaks(speaker, piece) for piece in pieces[1:])]


def _speaks(before: Speaker, piece: str) -> tuple[Speaker, str]:
    """Who says a message that was glued to another's; without a rank of its own it is the same process, or nobody is known."""
    other, text = parse(piece, replace(before, rank=None, local=None, pid=None))
    return (other, text) if other.rank is not None or other.local is not None else (before, text)


def _with_inner(speaker: Speaker, rest: str) -> tuple[Speaker, str]:
    if speaker.rank is None and "[rank" in rest and (inner := _INNER_RANK.search(rest)) is not None:
        # Another process's unfinished line stands in front.
        return replace(speaker, rank=int(inner[1])), rest[inner.end() :]
    return speaker, rest


def container(line: str) -> tuple[str, str, bool] | None:
    """For a line of a container's log: stream, content, and whether the line goes on in the next; None for any other."""
    found = _CRI.match(line)
    return (found[1], line[found.end() :], found[2] == "P") if found else None


def unwrapped(line: str) -> str:
    """The content of a line that a container's daemon has put into JSON; any other line as it is."""
    if line.startswith('{"log":'):
        try:
            content = json.loads(line)["log"]
        except (ValueError, KeyError, RecursionError):
            return line
        return content.rstrip("\n") if isinstance(content, str) else line
    return line


def nccl_head(line: str) -> tuple[str, int] | None:
    """Host and process of a line of NCCL's."""
    found = _NCCL_HEAD.search(line)
    return (found[1], int(found[2])) if found else None
