#!/usr/bin/env python3
"""Runs every scenario several times under ``desync watch`` and prints a Markdown table of the verdicts and of their times.

    scenario_table.py [--repeat 10] [--at-once 1] [--run-dir DIR] [--out FILE] [NAME ...]

The scenarios take turns, so that a busy minute of the machine does not fall on one of them alone.  "detected" is the time from
the moment at which the ranks parted to the verdict, "stacks" from there to the last stack, both as the report has them: the
median, and in brackets the shortest and the longest of the runs.  A dash: the job ended by itself, and the verdict was made of
what it left.  What was not as expected follows the table, with the folder of its run; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fault_scenarios.catalogue import SCENARIOS, Scenario
from fault_scenarios.runner import MISSING, Outcome, ranks_text, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line names; 0 if every verdict was as expected, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", help="scenarios of 'desync scenarios list' (default: all)")
    parser.add_argument("--repeat", type=int, default=10, help="runs of each (default: 10)")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--run-dir", type=Path, help="folder for the runs (default: a new temporary one)")
    parser.add_argument("--out", type=Path, help="file for the table, written anew after each round (default: standard output)")
    options = parser.parse_args(arguments)
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no scenario {', '.join(unknown)}; see 'desync scenarios list'")
    chosen = [known[name] for name in options.names] or list(SCENARIOS)
    folder = options.run_dir or Path(tempfile.mkdtemp(prefix="desync-scenarios-"))
    outcomes: dict[str, list[Outcome]] = {scenario.name: [] for scenario in chosen}
    with ThreadPoolExecutor(options.at_once) as pool:
        for turn in range(1, options.repeat + 1):
            for outcome in pool.map(lambda scenario, turn=turn: run(scenario, folder / f"{scenario.name}-{turn}"), chosen):
                name = outcome.scenario.name
                outcomes[name].append(outcome)
                print(f"{name} {turn}: {'as expected' if outcome.as_expected else 'NOT as expected'}", file=sys.stderr)
            if options.out is not None:
                options.out.write_text(table(chosen, outcomes, options.at_once), encoding="utf-8")
    if options.out is None:
        print(table(chosen, outcomes, options.at_once), end="")
    return 0 if all(outcome.as_expected for runs in outcomes.values() for outcome in runs) else 1


def table(scenarios: Iterable[Scenario], outcomes: dict[str, list[Outcome]], at_once: int) -> str:
    """The runs so far as Markdown."""
    runs = [outcome for each in outcomes.values() for outcome in each]
    good = sum(outcome.as_expected for outcome in runs)
    load = os.getloadavg()[0]
    lines = [
        f"{good} of {len(runs)} runs as expected; {at_once} at a time on {os.cpu_count()} cores, load at the end {load:.1f}",
        "",
        "| scenario | ranks | verdict | culprits | as expected | detected (s) | stacks (s) | whole run (s) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for scenario in scenarios:
        lines.append(_row(scenario, outcomes[scenario.name]))
    wrong = [outcome for outcome in runs if not outcome.as_expected]
    lines += ["", *(_wrong(outcome) for outcome in wrong)] if wrong else []
    return "\n".join(lines) + "\n"


def _row(scenario: Scenario, outcomes: Sequence[Outcome]) -> str:
    times = [outcome.timing for outcome in outcomes if outcome.timing is not None]
    detected = [time.detected_after_s for time in times]
    stacks = [
        time.stacks_after_s - time.detected_after_s
        for time in times
        if time.stacks_after_s is not None and time.detected_after_s is not None
    ]
    cells = (
        scenario.name,
        str(scenario.world_size),
        f"{scenario.status.value}, {scenario.cause.value}",
        ranks_text(scenario.culprits),
        f"{sum(outcome.as_expected for outcome in outcomes)} of {len(outcomes)}",
        _spread([seconds for seconds in detected if seconds is not None]),
        _spread(stacks),
        _spread([outcome.seconds for outcome in outcomes]),
    )
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return MISSING
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def _wrong(outcome: Outcome) -> str:
    """What was not as expected of one run."""
    said = [f"{check.what}: {check.expected} expected, {check.got} got" for check in outcome.checks if not check.passed]
    return f"- {outcome.scenario.name} ({outcome.run_dir}): {outcome.problem or '; '.join(said)}"


if __name__ == "__main__":
    sys.exit(main())
