"""Runs a scenario under ``desync watch`` and compares the verdict with the expected one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from desync.errors import DesyncError
from desync.model import Cause, Frame, Status
from desync.report.json_format import from_json
from desync.report.model import Report, TimingEntry
from desync.report.text import clean
from fault_scenarios.catalogue import HANG_KILLED, READY, OutsideAction, Scenario

MISSING = "—"
_KEPT_LINES = 20
_END_S = 20.0
"""How long ``desync watch`` may take to end its job when this program is interrupted."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the verdict must say."""

    what: str
    expected: str
    got: str

    @property
    def passed(self) -> bool:
        """Whether it says so."""
        return self.expected == self.got


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run of a scenario."""

    scenario: Scenario
    run_dir: Path
    seconds: float
    checks: tuple[Check, ...]
    problem: str | None = None
    """Why there is no verdict to compare, or None."""
    timing: TimingEntry | None = None
    """When the report says that the ranks parted, and that desync saw it."""

    @property
    def as_expected(self) -> bool:
        """Whether everything is as the catalogue says."""
        return self.problem is None and all(check.passed for check in self.checks)


def run(scenario: Scenario, run_dir: Path, show: Callable[[bytes], None] | None = None) -> Outcome:
    """Run a scenario under ``desync watch`` with this run directory, which must be new or empty.

    ``show`` gets what the job and the watcher print, as it comes.  A run that is not over in the scenario's time is ended,
    with all its processes, and has that as its problem.
    """
    started = time.monotonic()
    tail: deque[bytes] = deque(maxlen=_KEPT_LINES)
    process = subprocess.Popen(
        watch_command(scenario, run_dir),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"OMP_NUM_THREADS": "1", **os.environ},
    )
    pump = threading.Thread(target=_pump, args=(process, scenario.outside_action, tail, show), daemon=True)
    pump.start()
    late = _wait(process, scenario.timeout_s)
    pump.join(_END_S)  # a job that outlives a watcher that was killed keeps the pipe open
    seconds = time.monotonic() - started
    if late:
        return Outcome(scenario, run_dir, seconds, (), f"not over after {scenario.timeout_s:g} s")
    report = _report(run_dir)
    if isinstance(report, str):
        last = clean(tail[-1].decode(errors="replace")) if tail else "nothing"
        problem = f"{report}; exit status {process.returncode}; the last line printed: {last}"
        return Outcome(scenario, run_dir, seconds, (), problem)
    checks = tuple(compare(scenario, report, process.returncode))
    return Outcome(scenario, run_dir, seconds, checks, timing=report.timing)


def watch_command(scenario: Scenario, run_dir: Path) -> list[str]:
    """The command line that runs a scenario under ``desync watch``, in this Python."""
    watch = ["-m", "desync", "watch", "--on-hang", "kill", "--hang-after", f"{scenario.hang_after_s:g}"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(scenario.world_size), *scenario.launch]
    program = [str(scenario.path), *scenario.arguments]
    return [sys.executable, *watch, "--run-dir", str(run_dir), "--", sys.executable, *launch, *program]


def compare(scenario: Scenario, report: Report, exit_status: int) -> Iterator[Check]:
    """Each thing that is expected of a scenario, beside what the report says."""
    verdict = report.verdict
    if scenario.may_hang and verdict.status is Status.HANG:
        scenario = replace(scenario, status=Status.HANG, exit_status=HANG_KILLED)
    yield Check("status", scenario.status.value, verdict.status.value)
    yield Check("cause", scenario.cause.value, verdict.cause.value)
    yield Check("culprits", ranks_text(scenario.culprits), ranks_text(verdict.culprit_ranks))
    for cause, culprits in scenario.also:
        yield Check("also", _fault_text(cause, culprits), _told(report, cause))
    if innocents := _blamed(report) - {*scenario.culprits, *(rank for _, ranks in scenario.also for rank in ranks)}:
        yield Check("nobody else", MISSING, ranks_text(innocents))
    if scenario.says is not None:
        said = clean(verdict.summary)
        yield Check("sentence", scenario.says, scenario.says if scenario.says in said else said)
    line = scenario.call_site_line()
    if line is not None:
        wanted = f"{scenario.program}:{line}"
        named = list(dict.fromkeys(_named_lines(scenario, report)))
        yield Check("call site", wanted, wanted if wanted in named else ", ".join(named) or MISSING)
    yield Check("exit status", str(scenario.exit_status), str(exit_status))


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks in words: ``0, 2``, or a dash for none."""
    return ", ".join(map(str, sorted(ranks))) or MISSING


def _fault_text(cause: Cause, culprits: Iterable[int]) -> str:
    return f"{cause.value}: {ranks_text(culprits)}"


def _blamed(report: Report) -> set[int]:
    """All ranks that any finding blames, also those that are said to follow from another."""
    return {rank for finding in report.findings for rank in finding.culprit_ranks}


def _told(report: Report, cause: Cause) -> str:
    """The fault of this cause that the report tells besides the first and that follows from no other one."""
    own = [finding for finding in report.findings[1:] if finding.follows_from is None]
    found = next((finding for finding in own if finding.cause is cause), None)
    return _fault_text(cause, found.culprit_ranks) if found is not None else MISSING


def _named_lines(scenario: Scenario, report: Report) -> Iterator[str]:
    for frame in _culprit_frames(report, set(scenario.culprits)):
        if Path(frame.file).name == scenario.program:
            yield f"{scenario.program}:{frame.line}"


def _culprit_frames(report: Report, culprits: set[int]) -> Iterator[Frame]:
    """All frames that the report shows of the culprits."""
    if report.divergence is not None:
        for rank in culprits & report.divergence.by_rank.keys():
            here = report.divergence.by_rank[rank]
            yield from (here.callsite, *here.callers) if here.callsite else here.callers
    for place in report.verdict.places:
        if culprits & set(place.ranks):
            yield from (place.frame, *place.callers)
    for entry in report.ranks:
        if entry.rank in culprits and entry.exception is not None:
            yield from entry.exception.frames
    for stack in report.stacks:
        if culprits & set(stack.ranks):
            yield from stack.frames


def _report(run_dir: Path) -> Report | str:
    """The report of a run, or why there is none."""
    try:
        return from_json((run_dir / "report.json").read_text(encoding="utf-8"))
    except OSError:
        return "desync watch wrote no report"
    except DesyncError as error:
        return str(error)


def _pump(
    process: subprocess.Popen[bytes],
    action: OutsideAction | None,
    tail: deque[bytes],
    show: Callable[[bytes], None] | None,
) -> None:
    """Read what is printed to its end; do the outside action when its rank says that it is ready."""
    if process.stdout is None:
        return
    with process.stdout as output:
        for line in output:
            tail.append(line)
            if show is not None:
                show(line)
            if action is not None and (pid := _announced(line, action.rank)) is not None:
                _signal_descendant(process.pid, pid, action)
                action = None


def _announced(line: bytes, rank: int) -> int | None:
    # Ranks that write without a buffer may come to share a line.
    ready = re.finditer(READY, line.decode(errors="replace"))
    return next((int(match[2]) for match in ready if int(match[1]) == rank), None)


def _signal_descendant(root: int, pid: int, action: OutsideAction) -> None:
    # The pid comes out of the job's output: nothing but a process of this very job is ever signalled.
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(root).children(recursive=True):
            if process.pid == pid:
                process.send_signal(action.signal)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait until it is over, at most so long; returns whether it was late and had to be ended."""
    try:
        process.wait(timeout=limit_s)
        return False
    except subprocess.TimeoutExpired:
        return True
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):  # the watcher was interrupted too, and ends its job
            process.wait(timeout=_END_S)
        raise
    finally:
        if process.poll() is None:
            _end_tree(process)


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    root = psutil.Process(process.pid)
    tree = [*root.children(recursive=True), root]
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
