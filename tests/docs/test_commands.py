"""docs/commands.md has every command and every option that there is, and none that there is not."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator

import pytest

from desync.cli.main import COMMANDS
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `desync (\w+)`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from (option for option in action.option_strings if option not in ("-h", "--help"))
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options(inner)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_section_has_the_commands_options(name: str) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"desync.cli.{name}").add_arguments(parser)
    prose = re.sub(r"```.*?```", "", SECTIONS[name], flags=re.DOTALL)

    written = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(re.findall(r"`([^`]*)`", prose))))

    assert set(options(parser)) - written == set()
    assert written - set(options(parser)) <= {"-m"}


def test_every_command_has_a_section_and_every_format_is_named() -> None:
    from desync.cli.report import FORMATS

    assert set(SECTIONS) == set(COMMANDS)
    assert all(f"`{name}`" in SECTIONS["report"] for name in FORMATS)
