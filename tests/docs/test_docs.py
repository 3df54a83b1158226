"""Every command in docs/ is run, and what the page says that it prints is compared with what it prints.

A page's blocks run in its order, in one folder: a ``python file=NAME`` block writes a file, a ``console`` block runs commands.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from desync.cli.main import COMMANDS
from tests.conftest import ROOT, end_tree
from tests.docs.pages import Block, blocks, commands, difference, scrubbed

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
RUN = ("python", "console")
SHOWN = ("text", "json", "yaml", "sh", "")
"""Languages of blocks that are not run."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder in which the pages' commands work: as in a clone, with desync and torchrun on the path."""
    for name in ("fault_scenarios", "tools", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / ".bin"
    programs.mkdir()
    for name, module in (("desync", "desync"), ("torchrun", "torch.distributed.run"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {f"-m {module}" if module else ""} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def test_there_are_pages() -> None:
    names = {page.stem for page in PAGES}

    assert len(list(DOCS.glob("causes/*.md"))) > 15
    assert {"getting-started", "how-it-works", "commands", "report-json", "overhead", "security-and-privacy", "faq"} <= names


@pytest.mark.job
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_page_says_what_happens(page: Path, place: Path) -> None:
    for block in blocks(page):
        assert block.language in RUN + SHOWN, f"{page.name}:{block.line}: {block.language!r}"
        if block.language == "console":
            _run(block, place)
        elif block.language == "python" and "file" in block.options:
            (place / block.options["file"]).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        elif block.language == "python":
            compile("\n".join(block.lines), f"{page.name}:{block.line}", "exec")


def _run(block: Block, place: Path) -> None:
    for command in commands(block):
        status, printed = _shell(command.text, place)
        where = f"{block.page.name}:{block.line}: $ {command.text}"
        assert status == command.status, f"{where}\n" + "\n".join(printed)
        wrong = difference(command.expected, printed)
        assert wrong is None, f"{where}\n{wrong}"


def _shell(text: str, place: Path) -> tuple[int, list[str]]:
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "GITHUB_ACTIONS")}
    environment.update(
        PATH=f"{place / '.bin'}:{os.environ['PATH']}",
        PYTHONPATH=str(ROOT),
        OMP_NUM_THREADS="1",
        COLUMNS="80",
        LC_ALL="C.UTF-8",
        PYTHONWARNINGS="ignore",
    )
    process = subprocess.Popen(
        ["bash", "-c", text],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        stacks = end_tree(process.pid)
        pytest.fail(f"not over: {text}\n{stacks}")
    lines = output.decode(errors="replace").splitlines()
    return process.returncode, [line.rstrip() for line in lines if not re.match(r"\[W|W\d{4} |\*{8}|USDT:", line)]


def _links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = [link for link in _links(page) if "://" not in link and not (page.parent / link).exists()]

    assert broken == []


def _shown_commands(page: Path) -> Iterator[list[str]]:
    """The commands in blocks that are not run, and in workflow files: what only the reader's own files make runnable."""
    for block in blocks(page):
        if block.language in ("sh", "yaml"):
            for line in "\n".join(block.lines).replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("- run: "), comments=True)
                if words and words[0] in ("desync", "python"):
                    yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_are_only_shown_have_options_that_there_are(page: Path) -> None:
    for words in _shown_commands(page):
        own = words[: words.index("--")] if "--" in words else words
        if words[0] == "python":
            program, known = [sys.executable, str(ROOT / own[1])], own[1].startswith("tools/")
        else:
            program, known = [sys.executable, "-m", "desync", own[1]], own[1] in COMMANDS
        assert known, words
        usage = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
        for option in (word.partition("=")[0] for word in own[2:] if word.startswith("-")):
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", usage), (words, option)


def test_scrubbing_leaves_what_is_said() -> None:
    assert scrubbed("rank 2 (pid 4312) is at train.py:84 in main") == "rank 2 (pid N) is at train.py:84 in main"
    assert scrubbed("diverged 2026-11-30 07:48:40 UTC · seen 0.2 s later") == "diverged TIME UTC · seen DURATION later"
    assert difference(["a", "[…]", "d"], ["a", "b", "c", "d"]) is None
    assert difference(["[…]", "a", "[…]"], ["a"]) is None
    assert difference(["a", "[…]", "d"], ["a", "b", "c"]) is not None
    assert difference(["a"], ["b"]) is not None
    assert difference(["a b", "  c (pid 7)", "[…]"], ["a", "b c (pid", "71234) d"]) is None
    assert difference(["rank 2 called", "barrier"], ["rank 2", "called barrier"]) is None
    assert difference(["a", "[…]"], ["a b"]) is None
    assert difference(["a b"], ["ab"]) is not None
