"""``desync explain``: the same report for a job that ran without desync, from what it left behind."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from desync.errors import UsageError

if TYPE_CHECKING:
    from desync.model import Diagnosis, Evidence
    from desync.report.model import Report

NAME = "explain"
HELP = "diagnose a job that ran without desync: from flight-recorder dumps, logs, ncclras or py-spy output"

_SWITCHES = (
    "to see more the next time: run it under `desync watch`; or set TORCH_FR_BUFFER_SIZE to 2000, TORCH_NCCL_DUMP_ON_TIMEOUT "
    "to 1 and TORCH_FR_DUMP_TEMP_FILE to /shared/dump_rank_ (before torch 2.9 TORCH_NCCL_TRACE_BUFFER_SIZE and "
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE) and keep the dumps of all ranks"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``desync explain``."""
    from desync.cli.report import add_output_arguments

    what = "dumps, logs, answers of ncclras, py-spy dumps, journals; folders, archives and patterns of them"
    parser.add_argument("paths", metavar="PATH", nargs="+", help=what)
    add_output_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Diagnose and show; returns 1 with ``--check`` if there is a finding, else 0."""
    from desync.cli.report import deliver

    if arguments.format == "timeline":
        raise UsageError(
            "a timeline needs journals", "use `desync report RUN_DIR --format timeline` with a run of `desync watch`"
        )
    report = explain(arguments.paths)
    deliver(report, arguments)
    return 1 if arguments.check and report.findings else 0


def explain(paths: list[str]) -> Report:
    """The report on what lies at these paths.  Raises a DesyncError if nothing there can be read."""
    from dataclasses import replace

    from desync.diagnosis.claims import interpret
    from desync.evidence.mixture import gather
    from desync.evidence.sources import find
    from desync.report.build import build_report
    from desync.report.model import Timing
    from desync.watch.leftover import left_stacks

    sources = find(paths)
    only_a_run = len(sources.run_directories) == 1 and not sources.found
    if only_a_run and (running := _running(sources.run_directories[0])) is not None:
        return running
    evidence = gather(sources)
    if only_a_run:
        evidence = replace(evidence, stacks=(*evidence.stacks, *left_stacks(sources.run_directories[0])))
    diagnosis = interpret(evidence)
    if only_a_run and not diagnosis.findings:
        evidence = replace(evidence, stacks=())  # where ranks were when a job that was well ended says nothing
    if not only_a_run:
        evidence = _with_advice(evidence, diagnosis)
    diverged = diagnosis.findings[0].time if diagnosis.findings else None
    return _spoken(build_report(evidence, diagnosis, Timing(diverged_at=diverged)), evidence, diagnosis)


def _running(run_directory: Path) -> Report | None:
    """The report on a run whose ranks still live here: they can be looked at, and who is late now may come yet."""
    from desync.cli.inspect import report_on
    from desync.watch.living import SECONDS, look_at_run

    evidence = look_at_run(run_directory, SECONDS)
    return None if evidence is None else report_on(evidence)


def _with_advice(evidence: Evidence, diagnosis: Diagnosis) -> Evidence:
    """Where operations were not recorded and something is wrong: what would have shown more."""
    from dataclasses import replace

    recorded = any(len(trace.operations) > 1 and trace.dropped for trace in evidence.traces)
    if recorded or not diagnosis.findings:
        return evidence
    return replace(evidence, notes=(*evidence.notes, _SWITCHES))


def _spoken(report: Report, evidence: Evidence, diagnosis: Diagnosis) -> Report:
    """Without a finding, the verdict in the words of what was read: a log is no record of operations."""
    from dataclasses import replace

    from desync.model import Cause, Certainty, ClaimKind, Status

    if diagnosis.findings or any(len(trace.operations) for trace in evidence.traces):
        return report
    finished = next((claim for claim in evidence.claims if claim.kind is ClaimKind.FINISHED), None)
    cancelled = next((claim for claim in evidence.claims if claim.kind is ClaimKind.CANCELLED), None)
    if cancelled is not None:
        done = f", after the program had said that its work was done ({finished.text})" if finished is not None else ""
        summary = f"Nothing that was read describes a fault; the scheduler ended the job{done}: {cancelled.text}"
        verdict = replace(report.verdict, status=Status.UNKNOWN, summary=summary, advice=_SWITCHES)
    elif diagnosis.status is Status.HEALTHY and finished is not None:
        summary = f"Nothing in the log describes a fault, and it says that the job ended ({finished.text})."
        verdict = replace(report.verdict, status=Status.HEALTHY, cause=Cause.NONE, certainty=Certainty.LIKELY)
        verdict = replace(verdict, summary=summary, advice="")
    else:
        summary = "Nothing that was read describes a fault, and nothing says that the job came to its end."
        verdict = replace(report.verdict, status=Status.UNKNOWN, summary=summary, advice=_SWITCHES)
    return replace(report, verdict=verdict)
