"""Which bucket size suits a DDP training: runs it with several, everything else fixed, and compares what the records say.

    tools/bucket_sweep.py -- torchrun --nproc-per-node 2 train.py --bucket-cap-mb {}

``{}`` stands for the size in MiB.  Each round runs every size once, in an order of its own, so that a machine that becomes
slower or faster meanwhile does not favour one; sizes are compared round by round.  A size counts as better only if the 95 %
confidence interval of the paired difference in step time leaves zero out.
"""

from __future__ import annotations

import argparse
import html
import itertools
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a source tree need not be installed

from desync.errors import DesyncError, UsageError
from desync.evidence.run_directory import load
from desync.model import Evidence
from desync.report.ddp_steps import Step, steps
from desync.report.text import count
from desync.report.units import duration

MAX_STEPS = 2000
PLACE = "{}"
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09)
"""Two-sided 95 % points of Student's t for 1, 2, … degrees of freedom; beyond them 2.0 is near enough."""
MEASURES = ("step", "communication", "overlap", "tail")


@dataclass(frozen=True)
class Run:
    """Medians over the steps and ranks of one run, in seconds."""

    step: float
    communication: float
    overlap: float
    tail: float
    buckets: int
    steps: int


@dataclass(frozen=True)
class Comparison:
    """How much longer a step of one size takes than of the best: mean of the paired differences, and half its interval (s)."""

    size: float
    difference: float
    half_width: float

    @property
    def told_apart(self) -> bool:
        """Whether the interval leaves zero out."""
        return abs(self.difference) > self.half_width


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweep and print its table; returns the exit status."""
    arguments = _parse(argv)
    try:
        runs = sweep(arguments.command, arguments.sizes, arguments.rounds, arguments.skip, arguments.keep)
    except DesyncError as error:
        print(f"bucket_sweep: error: {error}", file=sys.stderr)
        return error.exit_status
    print("\n".join(table(runs)))
    print()
    print("\n".join(verdict(runs)))
    if arguments.plot:
        arguments.plot.write_text(drawing(runs), encoding="utf-8")
        print(f"drawn in {arguments.plot}")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=_sizes, default=(6.0, 12.0, 25.0, 50.0), help="in MiB (default: 6,12,25,50)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each size is run (default: 5)")
    parser.add_argument("--skip", type=int, default=5, help="steps left out at the start of each run (default: 5)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the result")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run directories there")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=f"the launch line; {PLACE} is the size")
    arguments = parser.parse_args(argv)
    arguments.command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not any(PLACE in part for part in arguments.command):
        parser.error(f"the command has no {PLACE} in the place of the size: … --bucket-cap-mb {PLACE}")
    if arguments.rounds < 1 or len(arguments.sizes) < 2:
        parser.error("at least two sizes and one round are needed")
    return arguments


def _sizes(text: str) -> tuple[float, ...]:
    try:
        sizes = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 6,12,25") from None
    if not all(0 < size < math.inf for size in sizes) or len(set(sizes)) < len(sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of different sizes above 0")
    return sizes


def sweep(command: Sequence[str], sizes: Sequence[float], rounds: int, skip: int, keep: Path | None) -> dict[float, list[Run]]:
    """The runs of each size, one for each round; raises DesyncError if one cannot be measured."""
    runs: dict[float, list[Run]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory(prefix="bucket-sweep-") as temporary:
        folder = keep or Path(temporary)
        for number, order in enumerate(orders(sizes, rounds), start=1):
            for size in order:
                run = _run(command, size, folder / f"round-{number}-{size:g}", skip)
                runs[size].append(run)
                print(f"round {number} of {rounds}, {size:g} MiB: {duration(run.step)} a step", file=sys.stderr, flush=True)
    return runs


def orders(sizes: Sequence[float], rounds: int) -> list[list[float]]:
    """An order for each round; a round and the next are each other's reverse, so that a steady drift cancels out."""
    shuffler = random.Random(0)  # the same orders each time
    made: list[list[float]] = []
    while len(made) < rounds:
        order = list(sizes)
        shuffler.shuffle(order)
        made += [order, order[::-1]]
    return made[:rounds]


def _run(command: Sequence[str], size: float, run_dir: Path, skip: int) -> Run:
    filled = [part.replace(PLACE, f"{size:g}") for part in command]
    watch = [sys.executable, "-m", "desync", "watch", "--no-annotate", "--on-hang", "kill", "--run-dir", str(run_dir), "--"]
    done = subprocess.run([*watch, *filled], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise UsageError(f"the run with {size:g} MiB ended with status {done.returncode}", f"its last lines were\n{last}")
    return measured(load(run_dir), skip)


def measured(evidence: Evidence, skip: int) -> Run:
    """What a run's records say; raises UsageError if it had no steps of DDP beyond those that are left out."""
    found: list[Step] = []
    distances: list[int] = []
    for trace in evidence.traces:
        for module in trace.ddp:
            own = [step for step in steps(trace, module, MAX_STEPS) if step.number > skip]
            found += own
            stepped = [step.stepped for step in own if step.stepped]
            distances += [after - before for before, after in itertools.pairwise(stepped)]
    if not found or not distances:
        raise UsageError(f"no optimizer step of DDP was recorded after the first {skip}", "train longer, or lower --skip")

    def median(values: Sequence[int]) -> float:
        return statistics.median(values) / 1e9

    return Run(
        step=median(distances),
        communication=median([step.communication_ns for step in found]),
        overlap=median([step.overlap_ns for step in found]),
        tail=median([step.tail_ns for step in found]),
        buckets=max(len(step.launches) for step in found[-1:]),
        steps=len(found),
    )


def compare(runs: Mapping[float, Sequence[Run]]) -> tuple[float, list[Comparison]]:
    """The size with the shortest median step, and how the others compare with it, round by round."""
    best = min(runs, key=lambda size: statistics.median(run.step for run in runs[size]))
    found = []
    for size in runs:
        if size != best:
            pairs = zip(runs[size], runs[best], strict=True)
            differences = [other.step - fastest.step for other, fastest in pairs]
            found.append(Comparison(size, statistics.mean(differences), half_width(differences)))
    return best, found


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of a mean; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    degrees = len(values) - 1
    point = T_95[degrees - 1] if degrees <= len(T_95) else 2.0
    return point * statistics.stdev(values) / math.sqrt(len(values))


def table(runs: Mapping[float, Sequence[Run]]) -> list[str]:
    """Median over the rounds, with the least and the most."""
    lines = [f"{'MiB':>5}  {'buckets':>7}  " + "  ".join(f"{name:^26}" for name in MEASURES) + "  hidden"]
    for size, own in runs.items():
        cells = []
        for name in MEASURES:
            values = [getattr(run, name) for run in own]
            spread = f"({duration(min(values))} … {duration(max(values))})"
            cells.append(f"{duration(statistics.median(values)):>8} {spread:<17}")
        hidden = statistics.median(run.overlap / run.communication for run in own if run.communication)
        lines.append(f"{size:>5g}  {own[-1].buckets:>7}  " + "  ".join(cells) + f"  {100 * hidden:4.0f} %")
    return lines


def verdict(runs: Mapping[float, Sequence[Run]]) -> list[str]:
    """Which size is best, or that they cannot be told apart."""
    best, others = compare(runs)
    alike = [one for one in others if not one.told_apart]
    rounds = count(len(runs[best]), "round")
    lines = []
    for one in others:
        interval = f"± {duration(one.half_width)}" if math.isfinite(one.half_width) else "(one round: no interval)"
        sign = "longer" if one.difference >= 0 else "shorter"
        word = "" if one.told_apart else ": not told apart"
        lines.append(f"  {one.size:g} MiB: {duration(abs(one.difference))} {interval} {sign} than {best:g} MiB{word}")
    if len(alike) == len(others):
        lines.append(f"The sizes cannot be told apart in {rounds}.")
    elif alike:
        names = ", ".join(f"{one.size:g}" for one in alike)
        lines.append(f"Best: {best:g} MiB, not told apart from {names} MiB in {rounds}.")
    else:
        lines.append(f"Best: {best:g} MiB ({rounds}, 95 % confidence).")
    return lines


WIDTH, ROW, LEFT, TOP = 720, 46, 90, 46
COLOURS = {"compute and hidden communication": "#8a5fd1", "tail": "#d9822b"}


def drawing(runs: Mapping[float, Sequence[Run]]) -> str:
    """An SVG picture: a bar for the step of each size, its tail set apart, and the spread over the rounds."""
    longest = max(run.step for own in runs.values() for run in own)
    scale = (WIDTH - LEFT - 110) / longest
    height = TOP + ROW * len(runs) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="10" y="22" font-size="15">Step time by bucket size (bucket_cap_mb)</text>',
    ]
    for number, (size, own) in enumerate(runs.items()):
        parts += _bar(TOP + ROW * number, f"{size:g} MiB", own, scale)
    x = LEFT
    for name, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="{height - 22}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{height - 11}">{html.escape(name)}</text>')
        x += 290
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(y: int, label: str, own: Sequence[Run], scale: float) -> list[str]:
    step, tail = (statistics.median(getattr(run, name) for run in own) for name in ("step", "tail"))
    first, second = COLOURS.values()
    low, high = (LEFT + pick(run.step for run in own) * scale for pick in (min, max))
    rest = max(0.0, step - tail) * scale
    return [
        f'<text x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{html.escape(label)}</text>',
        f'<rect x="{LEFT}" y="{y + 4}" width="{rest:.1f}" height="24" fill="{first}"/>',
        f'<rect x="{LEFT + rest:.1f}" y="{y + 4}" width="{tail * scale:.1f}" height="24" fill="{second}"/>',
        f'<path d="M{low:.1f} {y + 16}H{high:.1f}M{low:.1f} {y + 10}v12M{high:.1f} {y + 10}v12" stroke="#1c2128" fill="none"/>',
        f'<text x="{high + 8:.1f}" y="{y + 20}">{duration(step)}</text>',
    ]


if __name__ == "__main__":
    sys.exit(main())
