"""Real jobs for the tests: their launch, what they left, and the lines that they marked in themselves with ``# @name``."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from desync.journal.reader import JournalReader
from desync.model import Mark, MarkKind, Operation, Trace
from desync.watch.environment import DebugLevels, job_environment
from tests.conftest import ROOT, end_tree

PROGRAMS = Path(__file__).with_name("programs")
PYTHON = os.environ.get("DESYNC_TEST_PYTHON") or sys.executable
"""Another interpreter, with another torch, may run the jobs."""


@dataclass(frozen=True)
class Finished:
    """A job that has ended, and what its recorder left."""

    status: int
    statuses: tuple[int, ...]
    """Of the ranks, where they were started one by one."""
    output: str
    outputs: tuple[str, ...]
    traces: dict[int, Trace] = field(default_factory=dict)
    """Of the newest attempt, by rank."""
    notes: tuple[str, ...] = ()
    """Of processes without a journal."""
    folder: Path = Path()
    """The run directory."""


def line_of(program: Path, marker: str) -> int:
    """Number of the line that ends in ``# @marker``."""
    return markers(program)[marker]


def marker_at(program: Path, line: int) -> str | None:
    """The marker of a line, if it has one."""
    return next((name for name, at in markers(program).items() if at == line), None)


@cache
def markers(program: Path) -> dict[str, int]:
    """All markers of a program with their lines, in the order of the file."""
    found: dict[str, int] = {}
    for number, line in enumerate(program.read_text().splitlines(), 1):
        if match := re.search(r"# @([\w.-]+)$", line):
            assert match[1] not in found, f"marker {match[1]} twice in {program}"
            found[match[1]] = number
    return found


def recorded(folder: Path, more: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of a watched job whose run directory is ``folder``; None in ``more`` takes a variable out."""
    base = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment = job_environment(base, folder, DebugLevels())
    return _changed(environment, more)


def plain(more: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of the same job without desync."""
    return _changed({**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, more)


def _changed(environment: dict[str, str], more: Mapping[str, str | None] | None) -> dict[str, str]:
    return {name: value for name, value in {**environment, **(more or {})}.items() if value is not None}


def torchrun(
    program: Path,
    folder: Path,
    *arguments: str,
    ranks: int = 2,
    options: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 240,
) -> Finished:
    """Run a program under torchrun with the recorder."""
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *options]
    return _finish([_start([*command, str(program), *arguments], recorded(folder, env))], folder, timeout_s)


def start_ranks(
    program: Path,
    environment: Mapping[str, str],
    *arguments: str,
    ranks: int = 2,
    python: Sequence[str] = (PYTHON,),
) -> list[subprocess.Popen[bytes]]:
    """Start the ranks of a job one by one, with the variables that a launcher sets; quicker than torchrun."""
    port = _free_port()
    started = []
    for rank in range(ranks):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        variables = {name: str(value) for name, value in own.items()}
        full = {**environment, **variables, "MASTER_ADDR": "127.0.0.1"}
        started.append(_start([*python, str(program), *arguments], full))
    return started


def run_ranks(
    program: Path,
    folder: Path,
    *arguments: str,
    ranks: int = 2,
    env: Mapping[str, str | None] | None = None,
    recorder: bool = True,
    python: Sequence[str] = (PYTHON,),
    timeout_s: float = 240,
) -> Finished:
    """Start the ranks one by one and wait for all of them."""
    environment = recorded(folder, env) if recorder else plain(env)
    return _finish(start_ranks(program, environment, *arguments, ranks=ranks, python=python), folder, timeout_s)


def run_alone(
    program: Path, folder: Path, *arguments: str, env: Mapping[str, str | None] | None = None, read: bool = True
) -> Finished:
    """Run a program that is no rank by itself (it spawns them); ``read`` its journals, if each rank has one only."""
    return _finish([_start([PYTHON, str(program), *arguments], recorded(folder, env))], folder, 90, read)


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(environment), cwd=ROOT
    )


def _finish(processes: Sequence[subprocess.Popen[bytes]], folder: Path, timeout_s: float, read: bool = True) -> Finished:
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=timeout_s)[0].decode(errors="replace"))
    except subprocess.TimeoutExpired:
        stacks = "\n".join(end_tree(process.pid) for process in processes if process.poll() is None)
        late = "\n".join(process.communicate()[0].decode(errors="replace") for process in processes[len(outputs) :])
        raise AssertionError(f"not over after {timeout_s} s\n{stacks}\n{late}") from None
    statuses = tuple(process.returncode for process in processes)
    return Finished(
        status=next((status for status in statuses if status), 0),
        statuses=statuses,
        output="\n".join(outputs),
        outputs=tuple(outputs),
        traces=read_traces(folder) if read else {},
        notes=read_notes(folder),
        folder=folder,
    )


def read_traces(folder: Path, attempt: int | None = None) -> dict[int, Trace]:
    """The traces of the newest (or the given) attempt, by rank; two journals of one rank are an error."""
    traces: dict[int, dict[int, Trace]] = {}
    for path in sorted((folder / "journals").glob("*.journal")) if (folder / "journals").is_dir() else ():
        reader = JournalReader(str(path))
        trace = reader.trace()
        if trace is not None:
            ranks = traces.setdefault(reader.attempt, {})
            assert trace.rank not in ranks, f"two journals of rank {trace.rank}"
            ranks[trace.rank] = trace
        reader.close()
    return traces.get(max(traces) if attempt is None else attempt, {}) if traces else {}


def read_notes(folder: Path) -> tuple[str, ...]:
    """Lines of the note files."""
    files = sorted((folder / "journals").glob("*.note")) if (folder / "journals").is_dir() else []
    return tuple(line for path in files for line in path.read_text().splitlines())


def operations(trace: Trace) -> list[Operation]:
    """All operations of a trace, groups' calls included."""
    return list(trace.operations.rows(trace.rank))


def marks(trace: Trace, *kinds: MarkKind) -> list[Mark]:
    """The marks of some kinds."""
    return [mark for mark in trace.marks if mark.kind in kinds]


def at(operation: Operation | Mark, program: Path) -> str | None:
    """The marker of the line of the program that an operation (or mark) was called from."""
    site = operation.call.site if isinstance(operation, Operation) else operation.site
    if site is None or site.innermost.file != str(program):
        return None
    return marker_at(program, site.innermost.line)


def by_marker(found: Iterable[Operation], program: Path) -> dict[str | None, list[Operation]]:
    """Operations by the marker of their line, in the order of their first."""
    grouped: dict[str | None, list[Operation]] = {}
    for operation in found:
        grouped.setdefault(at(operation, program), []).append(operation)
    return grouped


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
