#!/usr/bin/env python3
"""The verdict of `desync explain` on every sample that has a truth file, beside that truth, as a Markdown table.

    explain_samples.py FOLDER…                    samples: NAME, NAME.log or NAME/ beside NAME.truth.json
    explain_samples.py FOLDER… --made MAKE_DUMPS  also on dumps that this program makes, for each of its faults
    explain_samples.py --made MAKE_DUMPS --drawn 100 --seed 1
                                                  and of so many jobs, faults and options drawn by chance

A truth names what is right: statuses, causes (`hedge`: causes that are right only as `possible`), certainties, culprits (null:
nobody may be named), group, number and operation of the divergence.  Exit status 1 if a verdict is not among what is right.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from desync.cli.explain import explain
from desync.errors import DesyncError
from desync.report.model import Report

FAULTS = ("none", "skip", "extra", "shape", "dtype", "stalled", "dead", "cycle", "p2p", "root", "network")
VARIANTS: dict[str, tuple[str, ...]] = {
    "": (),
    "rings of different length": ("--vary-ring", "--rank", "9"),
    "32 ranks": ("--ranks", "32", "--tp", "4", "--pp", "4", "--rank", "18"),
    "one shape in tensor groups": ("--no-sequence-parallel",),
    "no stacks": ("--no-frames",),
    "JSON": ("--json",),
    "only active": ("--only-active",),
}


@dataclass(frozen=True)
class Judged:
    """One sample with its verdict and what is wrong with it."""

    name: str
    report: Report | None
    wrong: tuple[str, ...]


def samples(folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Each sample of a folder with its truth."""
    for truth in sorted(folder.glob("*.truth.json")):
        name = truth.name.removesuffix(".truth.json")
        place = next((each for each in (folder / name, folder / f"{name}.log") if each.exists()), None)
        if place is not None:
            yield name, place, json.loads(truth.read_text(encoding="utf-8"))


def judge(name: str, place: Path, truth: dict[str, Any]) -> Judged:
    """Explain a sample and compare."""
    try:
        report = explain([str(place)])
    except DesyncError as error:
        return Judged(name, None, (str(error),))
    return Judged(name, report, tuple(differences(report, truth)))


def differences(report: Report, truth: dict[str, Any]) -> Iterator[str]:
    """What of a verdict is not among what the truth allows."""
    verdict, where = report.verdict, report.divergence
    status, cause, certainty = verdict.status.value, verdict.cause.value, verdict.certainty.value
    if status not in truth["status"]:
        yield f"status {status}"
    if cause not in truth["cause"] and not (cause in truth.get("hedge", ()) and certainty == "possible"):
        yield f"cause {cause} ({certainty})"
    if truth.get("certainty") and certainty not in truth["certainty"]:
        yield f"certainty {certainty}"
    right = [truth["culprit_ranks"], *truth.get("culprits_also", ())]
    if list(verdict.culprit_ranks) not in [each or [] for each in right]:
        yield f"culprits {list(verdict.culprit_ranks)}"
    for field, value in (("seq", where and where.seq), ("op", where and where.op)):
        allowed = [_plain(each) for each in _listed(truth.get(field))]
        if allowed and value not in allowed:
            yield f"{field} {value}"
    groups = [*_listed(truth.get("group")), *_listed(truth.get("group_desc"))]
    if groups and (where is None or not {where.group, where.description} & set(groups)):
        yield f"group {where and where.group}"
    if truth.get("also") is not None and len(report.findings) > 1 + len(truth["also"]):
        yield f"{len(report.findings)} findings"


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    """An operation without its ranks: "send 0->1" is a send."""
    return value.partition(" ")[0] if isinstance(value, str) else value


def made(
    program: Path, folder: Path, faults: Sequence[str] = FAULTS, variants: Mapping[str, Sequence[str]] = VARIANTS
) -> Iterator[Judged]:
    """Dumps for each fault and variant, made in the folder."""
    for variant, options in variants.items():
        for fault in faults:
            name = f"{fault}, {variant}" if variant else fault
            place = folder / name.replace(" ", "-").replace(",", "").replace(":", "")
            command = [sys.executable, program, place, "--fault", fault, *options]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                truth = json.loads((folder / f"{place.name}.truth.json").read_text(encoding="utf-8"))
                yield judge(name, place, truth)
            shutil.rmtree(place, ignore_errors=True)


FLAGS = {"--vary-ring": 0.3, "--no-frames": 0.15, "--json": 0.1, "--timing": 0.2, "--no-sequence-parallel": 0.2}


def drawn(program: Path, folder: Path, count: int, seed: int) -> Iterator[Judged]:
    """Dumps of jobs of different shape, each with a fault at a place drawn by chance; what cannot be made is left out."""
    random_ = random.Random(seed)
    for number in range(count):
        fault, tensor, pipeline = random_.choice(FAULTS), random_.choice([1, 2, 2, 4, 8]), random_.choice([1, 2, 2, 4])
        ranks = tensor * pipeline * random_.choice([1, 2, 2, 3])
        rank, entries = random_.randrange(ranks), random_.choice([150, 300, 600, 1200])
        flags = [flag for flag, share in FLAGS.items() if random_.random() < share]
        at = random_.choice(["tp", "dp", "world", *(["p2p"] if fault in ("stalled", "dead", "p2p") else [])])
        numbers = {"ranks": ranks, "tp": tensor, "pp": pipeline, "rank": rank, "entries": entries, "seed": number}
        numbers |= {"layers": random_.randrange(1, 4), "micro-batches": random_.choice([2, 4, 6])}
        options = [part for name, value in numbers.items() for part in (f"--{name}", str(value))]
        words = (f"draw {number}: {ranks} ranks", at, f"{entries} entries", *(flag.removeprefix("--") for flag in flags))
        if ranks > 1:
            yield from made(program, folder, (fault,), {", ".join(words): (*options, *flags, "--at", at)})


def row(judged: Judged) -> str:
    """A row of the table."""
    if judged.report is None:
        return f"| {judged.name} | | | | | **{'; '.join(judged.wrong)}** |"
    verdict, where = judged.report.verdict, judged.report.divergence
    culprits = ", ".join(map(str, verdict.culprit_ranks)) or "nobody"
    place = f"{where.op} #{where.seq} of {where.description or where.group}" if where is not None else ""
    right = f"**{'; '.join(judged.wrong)}**" if judged.wrong else "yes"
    said = f"{verdict.status.value} / {verdict.cause.value} | {verdict.certainty.value}"
    return f"| {judged.name} | {said} | {culprits} | {place} | {right} |"


def main() -> int:
    """Print the table; returns 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)
    parser.add_argument("--made", metavar="MAKE_DUMPS", type=Path, help="program that makes dumps with a known fault")
    parser.add_argument("--drawn", metavar="N", type=int, default=0, help="that many more, drawn by chance")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print("| sample | verdict | certainty | culprits | where | as the truth allows |\n|---|---|---|---|---|---|")
    total = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        judged = (judge(*each) for place in arguments.folders for each in samples(place))
        more: Iterator[Judged] = iter(())
        if arguments.made and arguments.drawn:
            more = drawn(arguments.made, Path(folder), arguments.drawn, arguments.seed)
        elif arguments.made:
            more = made(arguments.made, Path(folder))
        for each in chain(judged, more):
            print(row(each), flush=True)
            total, wrong = total + 1, wrong + bool(each.wrong)
    print(f"\n{total - wrong} of {total} verdicts are among what the truth allows.")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
