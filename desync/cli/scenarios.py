"""``desync scenarios``: the deliberately broken programs, and whether desync says of each what it must."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from desync.errors import UsageError

if TYPE_CHECKING:
    from fault_scenarios.catalogue import Scenario
    from fault_scenarios.runner import Outcome

NAME = "scenarios"
HELP = "list or run small broken programs, each with the verdict that it must get"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = "show all scenarios and what is expected of each"
    actions.add_parser("list", help=listing, description=listing)
    running = "run scenarios under 'desync watch' and compare the verdict; exit status 1 if one is not as expected"
    run_parser = actions.add_parser("run", help=running, description=running)
    run_parser.add_argument("names", metavar="NAME", nargs="*", help="a scenario of 'desync scenarios list'")
    run_parser.add_argument("--all", action="store_true", help="run every scenario")
    run_parser.add_argument("--repeat", type=_positive, default=1, metavar="N", help="run each N times (default: 1)")
    run_parser.add_argument("--run-dir", type=Path, help="where the run is recorded; several runs: a folder for each in it")


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked for; exit status 0 if every verdict was as expected, else 1."""
    if arguments.action == "list":
        _list()
        return 0
    scenarios = _chosen(arguments.names, arguments.all)
    runs = list(_runs(scenarios, arguments.repeat, arguments.run_dir))
    good = sum(_run_one(scenario, run_dir, alone=len(runs) == 1) for scenario, run_dir in runs)
    if len(runs) > 1:
        print(f"{good} of {len(runs)} runs as expected")
    return 0 if good == len(runs) else 1


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return number


def _chosen(names: Sequence[str], everything: bool) -> list[Scenario]:
    from fault_scenarios.catalogue import PENDING, SCENARIOS

    if everything == bool(names):
        raise UsageError("nothing to run" if not names else "both names and --all", "give names of scenarios, or --all")
    known = {scenario.name: scenario for scenario in (*SCENARIOS, *PENDING)}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else "see 'desync scenarios list'"
            raise UsageError(f"there is no scenario {name!r}", remedy)
    return [known[name] for name in names] if names else list(SCENARIOS)


def _runs(scenarios: Sequence[Scenario], repeat: int, run_dir: Path | None) -> Iterator[tuple[Scenario, Path]]:
    """Every run that is to be made, with its run directory."""
    alone = len(scenarios) == repeat == 1
    for scenario in scenarios:
        for number in range(1, repeat + 1):
            name = scenario.name if repeat == 1 else f"{scenario.name}-{number}"
            if run_dir is None:
                yield scenario, Path("desync-runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
            else:
                yield scenario, run_dir if alone else run_dir / name


def _run_one(scenario: Scenario, run_dir: Path, *, alone: bool) -> bool:
    from fault_scenarios.runner import run as run_scenario

    outcome = run_scenario(scenario, run_dir, _show if alone else None)
    for line in _lines(outcome, whole=alone):
        print(line, flush=True)
    return outcome.as_expected


def _show(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _lines(outcome: Outcome, *, whole: bool) -> Iterator[str]:
    """An outcome in words; ``whole``: also what was as expected."""
    word = "as expected" if outcome.as_expected else "NOT as expected"
    yield f"scenario {outcome.scenario.name}: {word} ({outcome.seconds:.1f} s, {outcome.run_dir})"
    if outcome.problem is not None:
        yield f"  {outcome.problem}"
    if outcome.checks and (whole or not outcome.as_expected):
        width = max(len(check.expected) for check in outcome.checks)
        yield f"     {'':11}  {'expected':{width}}  got"
        for check in outcome.checks:
            yield f"  {'ok' if check.passed else '!!'} {check.what:11}  {check.expected:{width}}  {check.got}"


def _list() -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fault_scenarios.catalogue import SCENARIOS
    from fault_scenarios.runner import ranks_text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("scenario, and what it shows")
    for heading in ("ranks", "verdict", "culprits"):
        table.add_column(heading, no_wrap=True)
    for scenario in SCENARIOS:
        title = Text.assemble((scenario.name, "bold"), "\n", scenario.shows)
        verdict = Text(f"{scenario.status.value}\n{scenario.cause.value}")
        table.add_row(title, Text(str(scenario.world_size)), verdict, Text(ranks_text(scenario.culprits)))
    Console().print(table)
