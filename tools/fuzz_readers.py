#!/usr/bin/env python3
"""Feeds damaged and hostile files to every reader of `desync explain`, and counts what came of them.

    fuzz_readers.py [--seconds 60] [--seed 1] [FOLDER…]    FOLDERs hold samples to damage; some are made here in any case

Each input is a sample with its bytes flipped, cut, repeated, spliced with another's or filled with rubbish, or a structure of
random values in the layout of a dump.  What a reader may do is give evidence, give a note, or raise a DesyncError; anything
else, and any input that takes longer than LIMIT_S, is a failure: it is written to ./fuzz-failures/ and the exit status is 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import pickle
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from desync.diagnosis.claims import interpret
from desync.errors import DesyncError
from desync.evidence import ncclras, pyspy_dump
from desync.evidence.flight_recorder.columns import RawDump, from_dump
from desync.evidence.flight_recorder.merge import merge
from desync.evidence.flight_recorder.pool import Reader, Unread, Wanted
from desync.evidence.logs.assemble import assemble
from desync.evidence.logs.reader import LogReader
from desync.evidence.mixture import gather
from desync.evidence.sources import find
from desync.model import Evidence, Job
from desync.report.build import build_report
from desync.report.json_format import to_json
from desync.report.model import Timing

LIMIT_S = 30
MAX_SEED = 200_000

LOG = b"""world_size=4 backend=nccl torch=2.7.1+cu121
[rank1]:[E611 02:55:33.075803794 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600096 milliseconds before timing out.
[rank1]:[E611 02:55:33.075803794 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank 1]  failure detected by \
watchdog at work sequence id: 7 PG status: last enqueued work: 9, last completed work: 6
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in main
[rank0]: KeyError: 'x'
  exitcode  : -9 (pid: 383434)
host:5:6 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1 commId 0x1 - Init COMPLETE
"""
RANK_OF_RAS = {"rank": 0, "host": "a", "pid": 1, "collective_counts": {"AllReduce": 9}}
RAS = json.dumps({"timestamp": "1", "communicators": [{"hash": "1", "ranks": [RANK_OF_RAS]}]}).encode()
STACKS = b"""Process 7: python train.py
Python v3.11.7

Thread 7 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:1)
    main (train.py:2)
"""
OPERATIONS = ("nccl:all_reduce", "nccl:send 0->1", "nccl:recv 1<-0", "gloo:barrier", "nccl:coalesced")
ODD = (None, -1, 1 << 70, "", "x" * 400, [], [[]], [[1 << 40]], {}, b"\xff", 1.5, True, ("0", "pg"), "send 0->1", float("nan"))
RUBBISH = (b"\r", b"\x1b[31m", b"9" * 40, b"\\n", b"[rank9999999]:", b"-1", b"\xff\xfe", b"Rank ")


def entry(random_: random.Random) -> dict[str, Any]:
    """An entry of a dump with odd values in some places."""
    made: dict[str, Any] = {
        "frames": [{"name": "f", "filename": "t.py", "line": random_.randrange(9)}],
        "record_id": random_.randrange(9),
        "pg_id": random_.randrange(3),
        "process_group": (str(random_.randrange(3)), "default_pg"),
        "thread_id": "1",
        "collective_seq_id": random_.randrange(6),
        "p2p_seq_id": random_.randrange(6),
        "profiling_name": random_.choice(OPERATIONS),
        "time_created_ns": random_.randrange(1 << 60),
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": random_.choice(["scheduled", "completed"]),
        "time_discovered_completed_ns": random_.choice([None, 0, 5]),
        "retired": random_.random() < 0.5,
        "is_p2p": random_.random() < 0.3,
    }
    for key in random_.sample(sorted(made), random_.randrange(3)):
        made[key] = random_.choice(ODD)
    if random_.random() < 0.1:
        made.pop(random_.choice(sorted(made)))
    return made


def dump(random_: random.Random) -> dict[str, Any]:
    """A dump with odd values in some places."""
    many = "[0, 99999999999]" if random_.random() < 0.01 else "[300]"  # reports on a hundred thousand ranks take their time
    members: Any = random_.choice(["[0, 1]", "[]", [0, 1], "x", None, many])
    made = {
        "version": random_.choice(["2.9", "2.10", "9", None, 3]),
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
        "pg_status": {"0": {"last_enqueued_collective": random_.choice([3, "3", None, -1]), "last_completed_collective": 2}},
        "entries": [entry(random_) for _ in range(random_.randrange(12))],
    }
    if random_.random() < 0.2:
        made[random_.choice(sorted(made))] = random_.choice([None, [], {}, "x", 5, [5], {"a": 5}])
    return made


def damaged(seeds: list[bytes], random_: random.Random) -> bytes:
    """A sample with some damage."""
    data = bytearray(random_.choice(seeds))
    for _ in range(random_.randrange(1, 6)):
        place = random_.randrange(len(data) + 1)
        match random_.randrange(7):
            case 0:
                del data[place : place + random_.randrange(1, 64)]
            case 1:
                data[place:place] = random_.randbytes(random_.randrange(1, 24))
            case 2 if data:
                data[min(place, len(data) - 1)] ^= 1 << random_.randrange(8)
            case 3:
                del data[place:]
            case 4:
                other = random_.choice(seeds)
                start = random_.randrange(len(other) + 1)
                data[place:place] = other[start : start + random_.randrange(1, 400)]
            case 5:
                data[place:place] = bytes(data[place : place + random_.randrange(1, 80)]) * random_.randrange(2, 20)
            case _:
                data[place:place] = random_.choice(RUBBISH)
    return bytes(data[:MAX_SEED])


def show(evidence: Evidence) -> None:
    """All that is done with evidence afterwards."""
    diagnosis = interpret(evidence)
    to_json(build_report(evidence, diagnosis, Timing()))


def try_dump(data: bytes) -> str:
    """A pickle or JSON text as a dump of two ranks, one of them sound; in a process with limits, as always."""
    raw = WORKER.read(Wanted(None, lambda: data))
    if isinstance(raw, Unread):
        return "refused"
    show_dumps({0: raw, 1: SOUND})
    return "read"


def show_dumps(dumps: dict[int, RawDump]) -> None:
    """From dumps to a report."""
    merged = merge(dumps)
    show(Evidence(job=Job(world_size=merged.world_size), traces=merged.traces, notes=merged.notes))


def try_log(data: bytes) -> str:
    """A log."""
    reader = LogReader()
    reader.read(io.BytesIO(data), year=2025)
    for facts in reader.runs:
        found = assemble(facts)
        show(Evidence(job=Job(world_size=found.world_size), traces=found.traces, claims=found.claims))
    return "read"


def try_ras(data: bytes) -> str:
    """Answers of ncclras."""
    try:
        found = ncclras.combine(ncclras.parse(data.decode("utf-8", "replace")))
    except ValueError:
        return "refused"
    show(Evidence(job=Job(), traces=found.traces, claims=found.claims))
    return "read"


def try_stacks(data: bytes) -> str:
    """A py-spy dump."""
    return "read" if pyspy_dump.parse(data.decode("utf-8", "replace")) else "refused"


def try_file(data: bytes) -> str:
    """A file of unknown kind, through everything, worker process and all."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "dump_0").write_bytes(data)
        try:
            show(gather(find([folder])))
        except DesyncError:
            return "refused"
    return "read"


def seeds_in(folders: list[Path]) -> dict[str, list[bytes]]:
    """Samples to damage, by reader."""
    made = random.Random(5)
    dumps = [pickle.dumps(dump(made), protocol=2) for _ in range(20)]
    texts = [json.dumps(dump(made), default=str).encode() for _ in range(20)]
    found = {"dump": [*dumps, *texts], "log": [LOG], "ras": [RAS], "stacks": [STACKS]}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in (".log", "") and path.stat().st_size < MAX_SEED:
                data = path.read_bytes()
                found["dump" if data[:1] == b"\x80" else "log"].append(data)
            elif path.name.startswith("ncclras"):
                found["ras"].append(path.read_bytes())
    found["file"] = [each for seeds in found.values() for each in seeds]
    return found


READERS: dict[str, Callable[[bytes], str]] = {
    "dump": try_dump,
    "log": try_log,
    "ras": try_ras,
    "stacks": try_stacks,
    "file": try_file,
}
SHARE = {"dump": 40, "log": 35, "ras": 12, "stacks": 12, "file": 1}
WORKER = Reader()
SOUND = from_dump({"version": "2.10", "entries": [entry(random.Random(1))]})


def late(*_: object) -> None:
    """The time for one input is over."""
    raise TimeoutError("an input took too long")


def main() -> int:
    """Fuzz for the time given; returns 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    faulthandler.enable()
    signal.signal(signal.SIGALRM, late)
    random_ = random.Random(arguments.seed)
    seeds = seeds_in(arguments.folders)
    counts: Counter[tuple[str, str]] = Counter()
    slowest: Counter[str] = Counter()
    names, weights = list(SHARE), list(SHARE.values())
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        reader = random_.choices(names, weights)[0]
        data = damaged(seeds[reader], random_)
        if reader == "dump" and random_.random() < 0.4:
            data = pickle.dumps(dump(random_), protocol=2)
        began = time.perf_counter()
        signal.alarm(LIMIT_S)
        try:
            counts[(reader, READERS[reader](data))] += 1
        except Exception:  # noqa: BLE001 - this is what is looked for
            counts[(reader, "failed")] += 1
            keep(reader, data, counts[(reader, "failed")])
        finally:
            signal.alarm(0)
        slowest[reader] = max(slowest[reader], int((time.perf_counter() - began) * 1000))
    WORKER.close()
    return table(counts, slowest)


def keep(reader: str, data: bytes, number: int) -> None:
    """Keep an input that went wrong."""
    folder = Path("fuzz-failures")
    folder.mkdir(exist_ok=True)
    if number <= 20:
        (folder / f"{reader}-{number}").write_bytes(data)
        traceback.print_exc()


def table(counts: Counter[tuple[str, str]], slowest: Counter[str]) -> int:
    """Print what came of all inputs."""
    print("| reader | inputs | read | refused | failed | slowest |\n|---|---|---|---|---|---|")
    for reader in SHARE:
        read, refused, failed = (counts[(reader, outcome)] for outcome in ("read", "refused", "failed"))
        print(f"| {reader} | {read + refused + failed} | {read} | {refused} | {failed} | {slowest[reader]} ms |")
    failed = sum(count for (_, outcome), count in counts.items() if outcome == "failed")
    print(f"\n{sum(counts.values())} inputs, {failed} failures, Python {sys.version.split()[0]}.")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
