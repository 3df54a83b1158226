"""``desync inspect``: looks at a job that runs now and was started without desync, and says which rank is odd."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from desync.errors import InspectError, UsageError

if TYPE_CHECKING:
    from desync.model import Diagnosis, Evidence
    from desync.report.model import Report
    from desync.watch.ranks import LivingJob

NAME = "inspect"
HELP = "look at a job that hangs now and was started without desync"

MAX_LISTED = 8
MAX_COMMAND = 80
LONGEST_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``desync inspect``."""
    from desync.cli.report import add_output_arguments

    which = "the launcher or a rank of the job (default: the only job on this machine)"
    parser.add_argument("pid", metavar="PID", nargs="?", type=_pid, help=which)
    parser.add_argument("--for", metavar="SECONDS", dest="seconds", type=_seconds, default=2.0, help="how long to look (2)")
    add_output_arguments(parser)


def _pid(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is no process id")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 1 to {LONGEST_S:.0f}")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Look at the job and show what was seen; returns 1 with ``--check`` if there is a finding, else 0."""
    from desync.cli.report import deliver

    if arguments.format == "timeline":
        raise UsageError("a timeline needs journals", "start the job with `desync watch`")
    report = inspect(arguments.pid, arguments.seconds)
    deliver(report, arguments)
    return 1 if arguments.check and report.findings else 0


def inspect(pid: int | None, seconds: float) -> Report:
    """The report on the job to which a process belongs (None: on the only one).  Raises InspectError if there is none."""
    from desync.watch.living import look, look_at_run

    job = _chosen(pid)
    watched = Path(job.run_directory) if job.run_directory else None
    evidence = look_at_run(watched, seconds) if watched is not None and (watched / "journals").is_dir() else None
    if evidence is None:
        evidence = look(job, seconds)
    if evidence is None:
        raise InspectError("the job ended while it was looked at", "`desync watch` keeps what a job leaves")
    return report_on(evidence)


def report_on(evidence: Evidence) -> Report:
    """The report on a job that runs."""
    from dataclasses import replace

    from desync.diagnosis.living import interpret_living
    from desync.report.build import build_report
    from desync.report.model import Timing

    evidence = replace(evidence, notes=tuple(map(_with_remedy, evidence.notes)))
    diagnosis = interpret_living(evidence)
    diverged = diagnosis.findings[0].time if diagnosis.findings else None
    return _spoken(build_report(evidence, diagnosis, Timing(diverged_at=diverged)), evidence, diagnosis)


def _with_remedy(note: str) -> str:
    from desync.stacks.pyspy import FORBIDDEN

    what, _, _ = FORBIDDEN.partition(";")
    return note.replace(FORBIDDEN, f"{what}; {ptrace_remedy()}") if FORBIDDEN in note else note


def ptrace_remedy(proc: Path = Path("/proc")) -> str:
    """What to do where the stacks of a job that desync did not start may not be read."""
    from desync.cli.doctor import ptrace_remedy as of_children

    try:
        scope = (proc / "sys/kernel/yama/ptrace_scope").read_text(encoding="ascii").strip()
    except OSError:
        scope = "0"
    if scope == "1":
        return (
            "be root (sudo $(command -v desync) inspect), or allow it to the user's own programs: "
            "sudo sysctl kernel.yama.ptrace_scope=0"
        )
    of_child = of_children(proc)
    if scope in ("2", "3"):
        return of_child
    same_user = "be the user that runs the job, or root (sudo $(command -v desync) inspect)"
    return f"{same_user}; {of_child}" if "container" in of_child else same_user


def _spoken(report: Report, evidence: Evidence, diagnosis: Diagnosis) -> Report:
    """Without a finding, the verdict in the words of what was looked at: nothing was recorded."""
    from dataclasses import replace

    from desync.diagnosis.living import is_recorded, summary
    from desync.model import Cause, Certainty, Status

    if diagnosis.findings or is_recorded(evidence):
        return report
    moves = diagnosis.status is Status.HEALTHY
    elsewhere = len(evidence.traces) < (evidence.job.world_size or 0)
    advice = "Look on the other machines as well" if elsewhere else "Look again, for longer (--for 15)"
    advice = "" if moves else f"{advice}; `desync watch` from the start of the job shows more."
    verdict = replace(
        report.verdict,
        status=diagnosis.status,
        cause=Cause.NONE if moves else Cause.UNKNOWN,
        certainty=Certainty.LIKELY if moves else Certainty.POSSIBLE,
        summary=summary(evidence),
        advice=advice,
    )
    return replace(report, verdict=verdict)


def _chosen(pid: int | None) -> LivingJob:
    import psutil

    from desync.watch.living import peek
    from desync.watch.ranks import find_jobs, related

    if pid is not None and not psutil.pid_exists(pid):
        raise InspectError(f"there is no process {pid}", "name the launcher or a rank of a job that runs")
    jobs = find_jobs(peek, near=pid)
    if pid is not None:
        jobs = [job for job in jobs if related(job, pid)]
    if len(jobs) == 1:
        return jobs[0]
    if jobs:
        listed = "; ".join(map(_named, jobs[:MAX_LISTED]))
        raise InspectError(f"{len(jobs)} jobs run here", f"name one of them: {listed}")
    if pid is None:
        raise InspectError("no rank of a distributed job runs here", _HIDDEN)
    raise InspectError(f"process {pid}{_command(pid)} belongs to no distributed job", _whose(pid))


_HIDDEN = "name a PID; ranks of other users are seen only as root (sudo), those of a container from inside it"


def _named(job: LivingJob) -> str:
    pid = job.launcher if job.launcher is not None else min(job.pids.values())
    words = " ".join(os.path.basename(word) if word.startswith("/") else word for word in job.command)
    return f"desync inspect {pid} ({len(job.pids)} ranks of {words[:MAX_COMMAND] or 'a program'})"


def _command(pid: int) -> str:
    import psutil

    try:
        return f" ({psutil.Process(pid).name()})"
    except psutil.Error:
        return ""


def _whose(pid: int) -> str:
    """What to do about a process that shows nothing of a job."""
    try:
        with open(f"/proc/{pid}/environ", "rb"):
            return "name the launcher or a rank of one"
    except PermissionError:
        return "as far as this user may see: be the user that runs it, or root (sudo $(command -v desync) inspect)"
    except OSError:
        return "it has ended"
