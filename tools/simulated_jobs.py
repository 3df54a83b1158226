"""Jobs that never ran: random programs on simulated ranks, with a known fault or none, diagnosed and judged.

Every kind of fault gets its share of the jobs, and so do jobs without one and jobs with two on different ranks.  A third of the
jobs are looked at before their end, a third have lost the beginning of their records.  Where a rank has ended, half of the jobs
are looked at when its peers have failed for it and the launcher has ended the rest.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from random_programs import ENDS, FAULTS, plan_of, random_body
from simulator import START, Plan, Simulator, Truth, evidence

from desync.diagnosis import diagnose
from desync.model import Cause, Diagnosis


@dataclass(frozen=True)
class Outcome:
    """What came of one job."""

    kinds: tuple[str, ...]
    seed: int
    verdict: str
    """right, alike (a cause that leaves the same records), near (right rank, another cause), partly (one of two), unsure
    (nobody blamed), late (not to be seen), innocent."""
    detail: str


TURNS = (2, 6)
"""Between so many and so many turns has the loop of a program, unless more are asked for."""


def shows(simulator: Simulator, truth: Truth) -> bool:
    """Whether a fault came to pass and somebody noticed."""
    guilty = simulator.ranks[truth.rank or 0]
    if guilty.at <= truth.at and not guilty.ended and not guilty.stalled:
        return False  # others' faults have stopped it before
    if truth.cause in (Cause.EXCEPTION, Cause.KILLED, Cause.OUT_OF_MEMORY):
        return guilty.ended is not None
    if truth.cause in (Cause.STALLED_RANK, Cause.EXITED_EARLY, Cause.SLOW_RANK):
        return simulator.is_awaited(guilty)
    return not truth.silent


def judge(plan: Plan, diagnosis: Diagnosis, showed: list[Truth]) -> tuple[str, str]:
    """Compare a diagnosis with the truth."""
    guilty = {truth.rank: truth for truth in plan.truths}
    blamed = {rank for finding in diagnosis.findings for rank in finding.culprit_ranks}
    words = "; ".join(f"{f.cause.value} {f.culprit_ranks} {f.summary}" for f in diagnosis.findings)
    if blamed - set(guilty):
        return "innocent", words
    if not diagnosis.findings and not guilty:
        return "right", words
    if not guilty:
        return "innocent", words
    if not blamed:
        return ("unsure" if showed else "late"), words
    missed = [truth for truth in showed if truth.rank not in blamed]
    said = [(finding.cause, guilty[rank]) for finding in diagnosis.findings for rank in finding.culprit_ranks]
    if any(cause not in (truth.cause, truth.alike) for cause, truth in said):
        return "near", words
    if missed:
        return "partly", words
    return ("right" if all(cause is truth.cause for cause, truth in said) else "alike"), words


def played(seed: int, kinds: tuple[str, ...], turns: tuple[int, int] = TURNS) -> tuple[Simulator, random.Random] | None:
    """A job with these faults, played to its end; None if its program has no place for them, or too few sound ranks.

    Of two faulty ranks among three, the third would be the odd one out.
    """
    rng = random.Random(seed)
    body = random_body(rng, turns)
    if len(kinds) > 1 and 2 * len(kinds) >= body.world:
        return None
    plan = plan_of(body, kinds, rng)
    if plan is None:
        return None
    simulator = Simulator(plan, seed)
    simulator.run()
    return simulator, rng


def play(seed: int, kinds: tuple[str, ...], rings_cut: bool = True, turns: tuple[int, int] = TURNS) -> Outcome | None:
    """One job: played, observed at its end or at a random point before, with whole rings or (some) cut ones, and judged."""
    found = played(seed, kinds, turns)
    if found is None:
        return None
    simulator, rng = found
    cut = rng.random() < 0.3
    until = rng.randint(START, simulator.end) if cut else simulator.end + 1
    longest = max(len(rank.rows) for rank in simulator.ranks)
    dropped = [rng.randint(0, longest // 2) for _ in simulator.ranks] if rings_cut and rng.random() < 0.3 else None
    showed = [] if cut else [truth for truth in simulator.plan.truths if shows(simulator, truth)]
    if not cut and rng.random() < 0.5 and simulator.break_down():
        # Whoever stood still has been ended like all the others: that it did can no longer be seen.
        showed = [truth for truth in showed if truth.cause not in (Cause.STALLED_RANK, Cause.SLOW_RANK)]
    seen = evidence(simulator, until, dropped)
    plan = replace(simulator.plan, truths=[_as_it_shows(simulator, truth) for truth in simulator.plan.truths])
    verdict, detail = judge(plan, diagnose(seen), showed)
    return Outcome(kinds, seed, verdict, detail)


def _as_it_shows(simulator: Simulator, truth: Truth) -> Truth:
    """A truth without what it is alike only as long as its rank is held in its first wrong call, if it came further."""
    rank = simulator.ranks[truth.rank] if truth.rank is not None else None
    if rank is None or rank.blocked is None or rank.blocked.completed:
        return replace(truth, alike=None)
    calls = [do for do in rank.program[truth.at : rank.at - 1] if do.what not in ("mark", "wait", "pause")]
    return replace(truth, alike=None) if calls else truth


SHAPES: dict[str, tuple[str, ...]] = {"none": (), **{kind: (kind,) for kind in FAULTS}}
"""Jobs by the faults in them."""
TWO_ENDS, TWO = "two ends", "any two"
COLUMNS = ("right", "alike", "near", "partly", "unsure", "late", "innocent")


def kinds_of(shape: str, seed: int) -> tuple[str, ...]:
    """The faults of a job of this shape."""
    if shape in SHAPES:
        return SHAPES[shape]
    return tuple(random.Random(seed).sample(tuple(ENDS) if shape == TWO_ENDS else FAULTS, 2))


def render(table: dict[str, Counter[str]]) -> str:
    """What came of the jobs, as Markdown: a share of those that could be seen, and numbers."""
    lines = [f"| fault | jobs | {' | '.join(COLUMNS)} | right | right or alike |", f"|---|{'---:|' * (len(COLUMNS) + 3)}"]
    total: Counter[str] = sum(table.values(), Counter())
    for shape, counts in [*table.items(), ("all", total)]:
        seen = counts.total() - counts["late"]
        shares = [f"{100 * good / seen:.1f} %" if seen else "" for good in (counts["right"], counts["right"] + counts["alike"])]
        cells = [f"{counts.total():,}", *(f"{counts[column]:,}" for column in COLUMNS), *shares]
        lines.append(f"| {shape} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Play many jobs and print what came of them, by kind of fault; status 1 if an innocent was blamed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, nargs=2, default=TURNS, metavar=("LEAST", "MOST"), help="turns of a loop")
    parser.add_argument("--kind", action="append", choices=[*SHAPES, TWO_ENDS, TWO], help="only these (may be repeated)")
    parser.add_argument("--show", choices=COLUMNS, help="print the jobs with this outcome", default="innocent")
    arguments = parser.parse_args()
    table: dict[str, Counter[str]] = {shape: Counter() for shape in arguments.kind or [*SHAPES, TWO_ENDS, TWO]}
    began, count, seed = time.perf_counter(), 0, arguments.seed
    while count < arguments.jobs:
        # Programs without a place for a fault are passed over, so that each kind gets its share of the jobs.
        shape = min(table, key=lambda each: table[each].total())
        outcome = play(seed, kinds_of(shape, seed), turns=tuple(arguments.turns))
        seed += 1
        if outcome is None:
            continue
        count += 1
        table[shape][outcome.verdict] += 1
        if outcome.verdict == arguments.show:
            print(f"{outcome.verdict}: seed {outcome.seed} {outcome.kinds}: {outcome.detail}")
    print(render(table))
    print(f"\n{count:,} jobs in {time.perf_counter() - began:.0f} s, seeds {arguments.seed} to {seed - 1}")
    return 1 if any(counts["innocent"] for counts in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
