"""The pages of docs/ as things to check: files that they write, commands that they run, and what these print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)?(.*)$")
ELLIPSIS = "[…]"
"""A line of this stands for any number of lines."""
_ANYTHING = "\0"


@dataclass(frozen=True)
class Block:
    """One fenced block; ``options`` are the words after its language, as ``name=value``."""

    page: Path
    line: int
    language: str
    options: dict[str, str]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A command of a ``console`` block and what it prints there."""

    text: str
    expected: tuple[str, ...]
    status: int


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    inside: tuple[int, str, dict[str, str], list[str]] | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence and inside is None:
            options = dict(word.split("=", 1) for word in fence[2].split() if "=" in word)
            inside = (number, fence[1] or "", options, [])
        elif fence and inside is not None:
            start, language, options, lines = inside
            yield Block(page, start, language, options, tuple(lines))
            inside = None
        elif inside is not None:
            inside[3].append(line)
    assert inside is None, f"{page.name}: a block is not closed"


def commands(block: Block) -> list[Command]:
    """The commands of a console block: lines after ``$ ``, each followed by what it prints.

    A line that ends in a backslash, or inside double quotes, goes on in the next one.
    """
    found: list[tuple[str, list[str]]] = []
    unfinished = False
    for line in block.lines:
        if unfinished:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        elif line.startswith("$ "):
            found.append((line[2:], []))
        else:
            assert found, f"{block.page.name}:{block.line}: output without a command"
            found[-1][1].append(line)
            continue
        unfinished = line.endswith("\\") or found[-1][0].count('"') % 2 == 1
    statuses = [int(status) for status in block.options.get("status", "0").split(",")]
    statuses += [0] * (len(found) - len(statuses))
    return [Command(text, tuple(lines), status) for (text, lines), status in zip(found, statuses, strict=True)]


_SCRUBS = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00)?"), "TIME"),
    (re.compile(r"desync-runs/\d{8}-\d{6}-"), "desync-runs/WHEN-"),
    (re.compile(r"\S*(?=desync-runs/)"), ""),
    (re.compile(r"(?<=report: )\S*/(?=[\w-]+/report\.html)"), ""),
    (re.compile(r"\S*/(?=fault_scenarios/)"), ""),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"-?\b\d+(\.\d+)? (µs|ms|s|min)\b"), "DURATION"),
    (re.compile(r"\b\d+ %"), "SHARE"),
    (re.compile(r"(?<=torch/)(\S+):\d+"), r"\1:N"),
    (re.compile(r"\btorch \d\S*"), "torch VERSION"),
    (re.compile(r"^(  (forward|backward|bucket \d+|tail|optimizer)) .*$"), r"\1 BAR"),
    (re.compile(r"\(rank \d+, backward \d+\)"), "(ONE STEP)"),
    (re.compile(r" +"), " "),
)


def scrubbed(line: str) -> str:
    """A line without what differs from run to run and from machine to machine."""
    for pattern, put in _SCRUBS:
        line = pattern.sub(put, line)
    return line.strip()


def difference(expected: Sequence[str], printed: Sequence[str]) -> str | None:
    """What is wrong with what was printed; None if it is as expected.

    Words are compared and not lines: a longer process id breaks a paragraph elsewhere.
    """
    wanted, got = list(map(scrubbed, expected)), list(map(scrubbed, printed))
    # Scrubbed again as one line: what is scrubbed may have been broken, too.
    words = scrubbed(" ".join(_ANYTHING if line == ELLIPSIS else line for line in wanted)).split()
    pattern = "".join(r"(?:\S+ )*?" if word == _ANYTHING else f"{re.escape(word)} " for word in words)
    if re.fullmatch(pattern, "".join(f"{word} " for word in scrubbed(" ".join(got)).split())):
        return None
    return "--- the page says\n" + "\n".join(wanted) + "\n--- printed\n" + "\n".join(got)
