"""What a run directory says of a job, also when its watcher was killed before it could write a report."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from desync.errors import RunDirectoryError
from desync.evidence.journals import JournalFolder
from desync.evidence.liveness import is_alive
from desync.model import Evidence, Exit, Frame, Job, RankStacks, Stack

SCHEMA = "desync.run/1"
RUN_FILE = "run.json"
JOURNALS = "journals"
STACKS = "stacks"
MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class RunRecord:
    """``run.json``: written when the job starts, and again when something about it is learned.  Times are epoch ns."""

    command: tuple[str, ...]
    started: int | None
    node: str
    hang_after_ns: int
    ended: int | None = None
    exit_code: int | None = None
    told_to_end: int | None = None
    exits: Mapping[int, Exit] = field(default_factory=dict)
    """By pid."""
    stacks: Mapping[int, tuple[RankStacks, ...]] = field(default_factory=dict)
    """Stacks taken from outside, by attempt."""
    notes: tuple[str, ...] = ()

    @property
    def job(self) -> Job:
        """The job as far as this record knows it."""
        return Job(
            command=self.command,
            started=self.started,
            ended=self.ended,
            exit_code=self.exit_code,
            told_to_end=self.told_to_end,
        )


def save(record: RunRecord, run_directory: Path) -> None:
    """Write ``run.json`` in one step (a reader sees the old one or the new one).  Raises OSError."""
    text = json.dumps(_to_json(record), separators=(",", ":"))
    # A new file, whatever lies there: it must be nobody's else.
    handle, temporary = tempfile.mkstemp(dir=run_directory, prefix=f".{RUN_FILE}.")
    try:
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(temporary, run_directory / RUN_FILE)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read(run_directory: Path) -> RunRecord:
    """The run's ``run.json``.  Raises RunDirectoryError if there is none or it is damaged."""
    path = run_directory / RUN_FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunDirectoryError(
            f"{run_directory} is not the directory of a run ({RUN_FILE} cannot be read: {error})",
            "give a directory that `desync watch` made",
        ) from error


def load(run_directory: Path, *, attempt: int | None = None, stacks: Iterable[RankStacks] = ()) -> Evidence:
    """Evidence of the newest (or the given) attempt from what the run left.

    ``stacks`` are added to those that the watcher saved.  The job counts as ended if that was recorded, or if none of its
    ranks' processes runs on this machine any more.  Raises RunDirectoryError.
    """
    record = read(run_directory)
    folder = JournalFolder(run_directory / JOURNALS)
    folder.refresh()
    try:
        newest = folder.attempts[-1] if folder.attempts else 0
        wanted = newest if attempt is None else attempt
        ended = record.ended is not None or wanted < newest or not _any_alive(folder)
        return folder.evidence(
            record.job,
            exits=record.exits,
            stacks=(*record.stacks.get(wanted, ()), *stacks),
            observed_at=record.ended or _last_change(run_directory),
            ended=ended,
            hang_after_ns=record.hang_after_ns,
            attempt=wanted,
            notes=record.notes if record.ended else (*record.notes, "the watcher did not see the job's end"),
        )
    finally:
        folder.close()


def _any_alive(folder: JournalFolder) -> bool:
    here = socket.gethostname()
    return any(process.node != here or is_alive(process.pid, process.started) for process in folder.ranks().values())


def _last_change(run_directory: Path) -> int | None:
    """When something in the run was written last (ns); None if nothing can be seen."""
    times = [path.stat().st_mtime_ns for path in (run_directory / JOURNALS).glob("*.journal") if path.is_file()]
    return max(times, default=None)


def _to_json(record: RunRecord) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "command": list(record.command),
        "started": record.started,
        "node": record.node,
        "hang_after_ns": record.hang_after_ns,
        "ended": record.ended,
        "exit_code": record.exit_code,
        "told_to_end": record.told_to_end,
        "exits": {str(pid): {"time": end.time, "code": end.code} for pid, end in record.exits.items()},
        "stacks": {str(attempt): [_stacks_to_json(one) for one in stacks] for attempt, stacks in record.stacks.items()},
        "notes": list(record.notes),
    }


def _from_json(raw: Any) -> RunRecord:
    if raw["schema"] != SCHEMA:
        raise ValueError(f"it says {str(raw['schema'])[:40]!r} and not {SCHEMA!r}")
    return RunRecord(
        command=tuple(str(part) for part in raw["command"]),
        started=_time(raw["started"]),
        node=str(raw["node"]),
        hang_after_ns=int(raw["hang_after_ns"]),
        ended=_time(raw["ended"]),
        exit_code=_time(raw["exit_code"]),
        told_to_end=_time(raw.get("told_to_end")),
        exits={int(pid): Exit(time=_time(end["time"]), code=_time(end["code"])) for pid, end in raw["exits"].items()},
        stacks={int(attempt): tuple(map(_stacks_from_json, stacks)) for attempt, stacks in raw["stacks"].items()},
        notes=tuple(str(note) for note in raw["notes"]),
    )


def _time(value: Any) -> int | None:
    return None if value is None else int(value)


def _stacks_to_json(stacks: RankStacks) -> dict[str, Any]:
    return {
        "rank": stacks.rank,
        "source": stacks.source,
        "time": stacks.time,
        "threads": [
            {"thread": one.thread, "gil": one.holds_gil, "frames": [[f.function, f.file, f.line] for f in one.frames]}
            for one in stacks.threads
        ],
    }


def _stacks_from_json(raw: Any) -> RankStacks:
    threads = tuple(
        Stack(
            thread=str(one["thread"]),
            frames=tuple(Frame(str(function), str(file), int(line)) for function, file, line in one["frames"]),
            holds_gil=one["gil"] if isinstance(one["gil"], bool) else None,
        )
        for one in raw["threads"]
    )
    return RankStacks(rank=int(raw["rank"]), source=str(raw["source"]), time=_time(raw["time"]), threads=threads)
