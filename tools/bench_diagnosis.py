#!/usr/bin/env python3
"""How long the diagnosis of a large job takes, and how much memory.

    python tools/bench_diagnosis.py [--ranks 64 256 1024] [--operations 2000] [--repeat 5] [--journals]

A made-up training with one fault: a group of all ranks, groups of eight, sends to the next rank, marks.  No two ranks share a
column, a call or a mark, as if each had been read from a file of its own.  Every measurement is a process of its own; its
memory is the peak that the kernel counted (VmHWM), the evidence included.  Prints Markdown: the median, in brackets the least
and the most.

With ``--journals`` the job is written into journals first, one a rank, and the time to read them is measured as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from desync.diagnosis import diagnose
from desync.evidence.journals import JournalFolder
from desync.journal.layout import HEADER_BYTES, RECORD_WORDS, WORD, Field, Flag, Header, RecordType
from desync.journal.writer import JournalWriter
from desync.model import (
    Activity,
    Call,
    CallSite,
    Diagnosis,
    Evidence,
    Frame,
    Group,
    Job,
    Kind,
    Mark,
    MarkKind,
    Motion,
    OperationTable,
    Progress,
    Tensors,
    Trace,
)

MILLISECOND = 1_000_000
START = 1_700_000_000_000_000_000
TEAM = 8
"""Ranks in each of the smaller groups."""
WORLD = "default_pg"
FAULTS = ("stalled", "skipped", "extra", "dtype", "circle", "none")

Step = tuple[str, str, int]
"""An operation as the program below knows it: its name, its group ("team", WORLD, "next", "previous"), its elements."""

TURN: tuple[Step, ...] = (
    ("all_gather_into_tensor", "team", 4096),
    ("all_reduce", "team", 512),
    ("send", "next", 64),
    ("recv", "previous", 64),
    ("all_reduce", WORLD, 25_000),
    ("all_reduce", WORLD, 31_000),
    ("all_reduce", WORLD, 17_000),
    ("all_reduce", WORLD, 1),
)
"""One turn of every rank's loop; ranks that are odd receive before they send."""
BUCKETS = (4, 5, 6)


class Program:
    """What one rank does."""

    def __init__(self, rank: int, ranks: int, operations: int, fault: str) -> None:
        self.rank, self.ranks = rank, ranks
        order = [0, 1, 3, 2, 4, 5, 6, 7] if rank % 2 else list(range(len(TURN)))
        turns = -(-operations // len(TURN))
        self.steps = array("q", order * turns)
        self.done = len(self.steps)
        self.dtypes: dict[int, str] = {}
        self._break(fault, turns - 1)

    def _break(self, fault: str, turn: int) -> None:
        """Do the fault, on one rank, in the last turn but for what is silent; set how far the rank and the others come."""
        guilty, last = self.ranks // 3, turn * len(TURN)
        if fault == "none":
            return
        if fault == "dtype":
            if self.rank == guilty:
                self.dtypes[last // 2 // len(TURN) * len(TURN) + 7] = "int32"
            return
        if fault == "circle":
            self._circle(guilty, last)
            return
        # The others wait in the team's second operation, or in the world's first.
        near = self.rank // TEAM == guilty // TEAM
        del self.steps[last + (2 if near else 5) :]
        if self.rank == guilty:
            del self.steps[last + 1 :]
            if fault == "skipped":
                self.steps.append(4)
            elif fault == "extra":
                self.steps.append(0)
        self.done = last + (1 if near else 4)

    def _circle(self, guilty: int, last: int) -> None:
        """One rank is in the world's group before its team's, the others the other way round."""
        near = self.rank // TEAM == guilty // TEAM
        del self.steps[last + (2 if near else 5) :]
        self.done = last + (1 if near else 4)
        if self.rank == guilty:
            del self.steps[last + 1 :]
            self.steps.append(4)

    def group(self, step: int) -> str:
        """Name of the group of a step."""
        name = TURN[step][1]
        return f"team{self.rank // TEAM}" if name == "team" else WORLD

    def peer(self, step: int) -> int | None:
        """The other side of a send or recv."""
        shift = {"next": 1, "previous": -1}.get(TURN[step][1])
        return None if shift is None else (self.rank + shift) % self.ranks

    def bucket(self, step: int) -> str | None:
        """DDP's bucket of a step."""
        return f"DDP bucket {step - BUCKETS[0]}: layer.weight, layer.bias" if step in BUCKETS else None

    def groups(self) -> dict[str, tuple[int, ...]]:
        """The groups of which the rank is a member."""
        first = self.rank // TEAM * TEAM
        return {WORLD: tuple(range(self.ranks)), f"team{self.rank // TEAM}": tuple(range(first, min(first + TEAM, self.ranks)))}

    def frames(self, step: int) -> list[tuple[str, str, int]]:
        """The lines from which a step is called."""
        return [("exchange", "/job/parallel.py", 40 + step), ("step", "/job/train.py", 110), ("main", "/job/train.py", 200)]


# --- the evidence, made directly ---------------------------------------------------------------------------------------------


def made_up(ranks: int, operations: int, fault: str) -> Evidence:
    """The evidence of the job."""
    traces = tuple(_trace(Program(rank, ranks, operations, fault)) for rank in range(ranks))
    now = START + (operations + 60_000) * MILLISECOND
    activities = {rank: Activity(rank, Motion.FROZEN, since=START + operations * MILLISECOND) for rank in range(ranks)}
    return Evidence(Job(world_size=ranks), traces, activities=activities if fault != "none" else {}, observed_at=now)


def _trace(program: Program) -> Trace:
    steps = list(program.steps)
    keys = [(step, program.dtypes.get(row, "float32")) for row, step in enumerate(steps)]
    calls = {key: _call(program, *key) for key in dict.fromkeys(keys)}
    numbers = {key: number for number, key in enumerate(calls)}
    names = list(program.groups())
    seqs: dict[object, int] = defaultdict(int)
    seq = array("q")
    for step in steps:
        key = (TURN[step][0], program.peer(step)) if program.peer(step) is not None else program.group(step)
        seqs[key] += 1
        seq.append(seqs[key])
    entered = array("q", (START + row * MILLISECOND + program.rank for row in range(len(steps))))
    table = OperationTable(
        calls=tuple(calls.values()),
        groups=tuple(names),
        call=array("q", (numbers[key] for key in keys)),
        group=array("q", (names.index(program.group(step)) for step in steps)),
        seq=seq,
        thread=array("q", [program.rank + 1]) * len(steps),
        entered=entered,
        returned=array("q", (time + 1000 for time in entered)),
        completed=array("q", (time + 2000 if row < program.done else 0 for row, time in enumerate(entered))),
    )
    groups = {name: Group(name, members, backend="nccl") for name, members in program.groups().items()}
    marks, progress = _marks(program)
    return Trace(program.rank, table, marks, groups, progress, pid=1000 + program.rank, node="node", world_size=program.ranks)


def _call(program: Program, step: int, dtype: str) -> Call:
    name, _, elements = TURN[step]
    p2p = program.peer(step) is not None
    return Call(
        name,
        Kind.P2P if p2p else Kind.COLLECTIVE,
        inputs=Tensors(((elements,),), (dtype,)),
        reduce_op="sum" if name == "all_reduce" else None,
        peer=program.peer(step),
        is_async=step in BUCKETS,
        site=CallSite(tuple(Frame(*frame) for frame in program.frames(step))),
        bucket=program.bucket(step),
    )


def _marks(program: Program) -> tuple[tuple[Mark, ...], Progress]:
    kinds = (MarkKind.FETCH, MarkKind.FORWARD, MarkKind.BACKWARD, MarkKind.STEP)
    after = (0, 0, 4, 7)
    marks = []
    turns = -(-len(program.steps) // len(TURN))
    for turn in range(turns):
        for kind, row in zip(kinds, after, strict=True):
            place = turn * len(TURN) + row
            if place <= len(program.steps):
                at = START + place * MILLISECOND - 1000 + program.rank
                value = turn + 1 if kind is MarkKind.FETCH else "sync" if kind is MarkKind.FORWARD else None
                lasts = kind is MarkKind.BACKWARD and place + len(BUCKETS) > len(program.steps)
                marks.append(Mark(kind, at, left=None if lasts else at + 500, value=value, after=place))
    counts = [sum(mark.kind is kind for mark in marks) for kind in kinds]
    return tuple(marks), Progress(*counts)


# --- the same, from journals -------------------------------------------------------------------------------------------------


def write_journals(folder: Path, ranks: int, operations: int, fault: str) -> None:
    """One journal a rank, of the size that the recorder makes."""
    for rank in range(ranks):
        program = Program(rank, ranks, operations, fault)
        writer = JournalWriter(str(folder / f"a0.node.{1000 + rank}.journal"))
        writer.identify(rank, ranks)
        _write(writer, program)


def _write(writer: JournalWriter, program: Program) -> None:
    groups = {
        name: writer.intern("group", {"name": name, "ranks": list(members), "backend": "nccl"})
        for name, members in program.groups().items()
    }
    begin = writer.words[Header.START_MONOTONIC]
    seqs: dict[object, int] = defaultdict(int)
    backward = 0
    for row, step in enumerate(program.steps):
        if row % len(TURN) == 0:
            writer.left(writer.mark(RecordType.FETCH, value=row // len(TURN) + 1))
            writer.left(writer.mark(RecordType.FORWARD | Flag.SYNC))
            writer.count(Header.BATCHES)
            writer.count(Header.FORWARDS)
        if step == BUCKETS[0]:
            backward = writer.mark(RecordType.BACKWARD)
            writer.count(Header.BACKWARDS)
        name, _, elements = TURN[step]
        peer, group = program.peer(step), program.group(step)
        key = (name, peer) if peer is not None else group
        seqs[key] += 1
        dtype = program.dtypes.get(row, "float32")
        payload = {"op": name, "kind": "p2p" if peer is not None else "collective", "in": [[[elements]], [dtype], 0]}
        if name == "all_reduce":
            payload["reduce_op"] = "sum"
        call = writer.intern("call", payload, key=(step, dtype))
        site = writer.intern("site", program.frames(step), key=step)
        bucket = program.bucket(step)
        number = writer.intern("text", bucket, key=bucket) if bucket else 0
        kind = RecordType.OPERATION | Flag.COMPLETION_KNOWN | (Flag.ASYNC if bucket else 0)
        entered = begin + row * MILLISECOND + program.rank
        serial = writer.operation(kind, groups[group], seqs[key], call, site, (peer or 0) + 1, 0, 7, number, entered)
        word = HEADER_BYTES // WORD + serial % writer.slots * RECORD_WORDS
        writer.words[word + Field.RETURNED] = entered + 1000
        if row < program.done:
            writer.words[word + Field.COMPLETED] = entered + 2000
        if step == BUCKETS[-1]:
            writer.left(backward)
            writer.left(writer.mark(RecordType.STEP))
            writer.count(Header.STEPS)


def read_journals(folder: Path, ranks: int, operations: int) -> Evidence:
    """What is in the journals."""
    journals = JournalFolder(folder)
    journals.refresh()
    now = time.time_ns() + (operations + 60_000) * MILLISECOND
    seen = journals.evidence(Job(world_size=ranks), observed_at=now)
    journals.close()
    frozen = {rank: Activity(rank, Motion.FROZEN, since=now - 60_000 * MILLISECOND) for rank in range(ranks)}
    return replace(seen, activities=frozen)


# --- measuring ---------------------------------------------------------------------------------------------------------------


def once(fault: str, ranks: int, operations: int, folder: str | None) -> int:
    """Make (or read) the evidence and diagnose it, in this process; prints the numbers as JSON."""
    began = time.process_time()
    seen = read_journals(Path(folder), ranks, operations) if folder else made_up(ranks, operations, fault)
    made = time.process_time() - began
    gc.collect()
    before = _memory("VmRSS")
    began, cpu = time.perf_counter(), time.process_time()
    found = diagnose(seen)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    numbers = {"made_s": made, "wall_s": took, "cpu_s": used, "evidence_mb": before, "peak_mb": _memory("VmHWM")}
    numbers["operations"] = sum(len(trace.operations) for trace in seen.traces)
    print(json.dumps({**numbers, "says": _says(found)}))
    return 0


def _says(found: Diagnosis) -> str:
    first = found.findings[0] if found.findings else None
    if first is None:
        return found.status.value
    return f"{first.cause.value}, ranks {list(first.culprit_ranks)}, {first.certainty.value}"


def _memory(name: str) -> float:
    """A number of /proc/self/status in MB; ru_maxrss would count what the process was before it became this program."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


def table(faults: list[str], sizes: list[int], operations: int, repeat: int, journals: bool) -> str:
    """The Markdown table."""
    made = "reading the journals" if journals else "making the evidence"
    names = ("ranks", "operations in all", "fault", "diagnosis, s", "its CPU, s", "peak memory, MB", "evidence alone, MB")
    lines = [f"| {' | '.join(names)} | {made}, CPU s | says |", "|---:|---:|---|---|---:|---|---:|---:|---|"]
    for fault in faults:
        for ranks in sizes:
            with tempfile.TemporaryDirectory() as folder:
                if journals:
                    write_journals(Path(folder), ranks, operations, fault)
                runs = [_measured(fault, ranks, operations, folder if journals else "") for _ in range(repeat)]
            lines.append(_row(fault, ranks, runs))
    return "\n".join(lines)


def _measured(fault: str, ranks: int, operations: int, folder: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--once", fault, str(ranks), str(operations), folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


def _row(fault: str, ranks: int, runs: list[dict[str, float]]) -> str:
    cells = {name: _spread([run[name] for run in runs]) for name in ("wall_s", "peak_mb")}
    alone = {name: statistics.median(run[name] for run in runs) for name in ("cpu_s", "evidence_mb", "made_s")}
    said = " / ".join(sorted({str(run["says"]) for run in runs}))
    return (
        f"| {ranks:,} | {runs[0]['operations']:,} | {fault} | {cells['wall_s']} | {alone['cpu_s']:.2f} | {cells['peak_mb']} | "
        f"{alone['evidence_mb']:.0f} | {alone['made_s']:.1f} | {said} |"
    )


def _spread(values: list[float]) -> str:
    digits = 2 if max(values) < 100 else 0
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--operations", type=int, default=2000, help="of each rank")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this one (may be repeated)")
    parser.add_argument("--journals", action="store_true", help="write journals, and read them")
    parser.add_argument("--once", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        fault, ranks, operations, folder = options.once
        return once(fault, int(ranks), int(operations), folder or None)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, load before the run {os.getloadavg()[0]:.1f}.\n")
    print(table(options.fault or list(FAULTS), options.ranks, options.operations, options.repeat, options.journals))
    return 0


if __name__ == "__main__":
    sys.exit(main())
