"""From evidence and diagnosis to a :class:`desync.report.model.Report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from desync import __version__
from desync.model import (
    AtDivergence,
    Cause,
    Certainty,
    Diagnosis,
    Divergence,
    Evidence,
    Finding,
    Job,
    Progress,
    RankStacks,
    RankState,
    Status,
    Trace,
    without_failures,
)
from desync.report.ddp import build_ddp
from desync.report.frames import bounded_frame, merge_stacks
from desync.report.lateness import build_lateness
from desync.report.model import (
    DivergenceEntry,
    ExceptionEntry,
    FindingEntry,
    JobEntry,
    LastOperation,
    ProgressEntry,
    RankAtDivergence,
    RankEntry,
    Report,
    Timing,
    TimingEntry,
    Verdict,
)
from desync.report.places import MAX_CALLERS, places_of
from desync.report.text import LINE, NAME, SENTENCE, bounded, count, rank_set, ranks_phrase
from desync.report.waits import build_waits
from desync.report.window import build_window

MAX_EVIDENCE = 64
MAX_FINDINGS = 256
MAX_NOTES = 256
MAX_RANKS_WITHOUT_TRACE = 65536
"""Bounds of a report: what a broken or hostile source says must not make it endless."""
TAKES_AT_MOST_NS = 3_000_000_000
"""A stack's time is that at which it was asked for."""


def build_report(evidence: Evidence, diagnosis: Diagnosis, timing: Timing) -> Report:
    """The report of one job: verdict, findings, divergence, ranks, merged stacks, and what could not be seen."""
    evidence = replace(evidence, stacks=_since(evidence.stacks, diagnosis.findings[0].time if diagnosis.findings else None))
    states = dict(diagnosis.states)
    findings = tuple(_finding(finding, evidence, states) for finding in diagnosis.findings[:MAX_FINDINGS])
    parted = next((finding for finding in diagnosis.findings if finding.divergence), None)
    divergence = parted.divergence if parted else None
    stood = without_failures(evidence)
    waits = build_waits(stood, divergence) if findings else ()
    return Report(
        job=_job(evidence.job),
        verdict=_verdict_of(findings[0]) if findings else _without_findings(evidence, diagnosis),
        findings=findings,
        divergence=_divergence(divergence) if divergence else None,
        ranks=_ranks(evidence, states),
        stacks=merge_stacks(evidence.stacks),
        timing=TimingEntry(iso(timing.diverged_at), timing.detected_after_s, timing.stacks_after_s),
        notes=_notes(evidence, diagnosis),
        window=build_window(stood, divergence, waits, circle=_is_circle(parted)) if parted and divergence else None,
        waits=waits,
        lateness=build_lateness(evidence),
        ddp=build_ddp(evidence),
    )


def _since(stacks: Sequence[RankStacks], parted: int | None) -> tuple[RankStacks, ...]:
    """Without stacks that are older than the fault: where a rank was that was slow at the start says nothing about it."""
    return tuple(
        sample for sample in stacks if sample.time is None or parted is None or sample.time >= parted - TAKES_AT_MOST_NS
    )


def _is_circle(finding: Finding) -> bool:
    """Whether ranks hold each other up, each in an operation of its own, and none of them more than the others."""
    return not finding.culprit_ranks and finding.cause in (Cause.GROUP_ORDER_CYCLE, Cause.P2P_MISMATCH)


EARLIEST = 10**17
"""No job ran before (in 1973): a smaller number only says what came before what."""


def iso(time: int | None) -> str | None:
    """Nanoseconds since the Unix epoch as ISO 8601 in UTC; None for a time that no calendar has, and for what is no time.

    In a log that names no times the order of its lines stands for them.
    """
    if time is None or time < EARLIEST:
        return None
    try:
        return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=time // 1000)).isoformat()
    except OverflowError:
        return None


def _job(job: Job) -> JobEntry:
    return JobEntry(
        command=job.command,
        world_size=job.world_size,
        nodes=job.nodes,
        torch=job.torch,
        backends=job.backends,
        started=iso(job.started),
        ended=iso(job.ended),
        exit_code=job.exit_code,
        attempt=job.attempt,
        desync=__version__,
        python=job.python,
    )


def _finding(finding: Finding, evidence: Evidence, states: dict[int, RankState]) -> FindingEntry:
    return FindingEntry(
        status=finding.status,
        cause=finding.cause,
        certainty=finding.certainty,
        culprit_ranks=finding.culprit_ranks,
        summary=bounded(finding.summary, SENTENCE),
        advice=bounded(finding.advice, SENTENCE),
        evidence=tuple(bounded(line, LINE) for line in finding.evidence[:MAX_EVIDENCE]),
        follows_from=finding.follows_from,
        time=iso(finding.time),
        places=places_of(finding, evidence, states),
    )


def _verdict_of(first: FindingEntry) -> Verdict:
    return Verdict(first.status, first.cause, first.certainty, first.culprit_ranks, first.summary, first.advice, first.places)


def _without_findings(evidence: Evidence, diagnosis: Diagnosis) -> Verdict:
    """Nothing was found: the job is healthy, or too little was seen to say so."""
    code = evidence.job.exit_code
    if not evidence.traces:
        return _unknown(
            "No rank left a record.",
            "Check with `desync doctor` that the recorder works here, and that the ranks reach init_process_group.",
        )
    if diagnosis.status is not Status.HEALTHY and _is_partial(evidence):
        return _unknown(
            f"The records of {len(evidence.traces)} of {evidence.job.world_size} ranks show no fault; those of the others are "
            "not there.",
            "Give the dumps and logs of all ranks: one that the others wait for can look healthy from its own record.",
        )
    if diagnosis.status is not Status.HEALTHY:
        return _unknown(
            "The ranks' records do not show what went wrong.",
            "See the notes for what could not be seen; desync.mark() in the training loop shows more of each rank's way.",
        )
    if evidence.ended and code not in (0, None) and evidence.job.told_to_end is None:
        return _unknown(
            f"The job ended with status {code}, and no rank's record says why.",
            "Read the job's output; the fault may lie in the launcher, or before init_process_group.",
        )
    return _healthy(evidence)


def _unknown(summary: str, advice: str) -> Verdict:
    return Verdict(Status.UNKNOWN, Cause.UNKNOWN, Certainty.POSSIBLE, (), summary, advice)


def _healthy(evidence: Evidence) -> Verdict:
    ended = evidence.ended and _all_seen_to_end(evidence) and evidence.job.told_to_end is None
    certainty = Certainty.PROVEN if ended else Certainty.LIKELY
    return Verdict(Status.HEALTHY, Cause.NONE, certainty, (), _healthy_summary(evidence, ended), "")


def _is_partial(evidence: Evidence) -> bool:
    """Whether ranks of a job that nobody watched have left no record although others have recorded operations."""
    recorded = evidence.observed_at is None and any(len(trace.operations) for trace in evidence.traces)
    return recorded and len(evidence.traces) < (evidence.job.world_size or 0)


def _all_seen_to_end(evidence: Evidence) -> bool:
    expected = evidence.job.world_size or len(evidence.traces)
    return len(evidence.traces) >= expected and all(trace.exit is not None for trace in evidence.traces)


def _healthy_summary(evidence: Evidence, all_ended: bool) -> str:
    known = [trace.dropped + len(trace.operations) for trace in evidence.traces]
    who = {1: "The only rank", 2: "Both ranks"}.get(len(known), f"All {len(known)} ranks")
    if len(known) < (evidence.job.world_size or 0):
        who = f"{len(known)} of {evidence.job.world_size} ranks"
    least, most = min(known), max(known)
    did = f"the same {count(most, 'operation')}" if least == most else f"{least} to {most} operations that agree"
    if len(known) == 1:
        did = count(most, "operation")
    end = " and ended" if all_ended else "; the job ended" if evidence.ended else " so far"
    if evidence.job.told_to_end is not None:
        end = " until the job was told to end"
    return f"{who} went through {did}{end}."


def _divergence(divergence: Divergence) -> DivergenceEntry:
    return DivergenceEntry(
        group=bounded(divergence.group.name, NAME),
        group_ranks=divergence.group.ranks,
        kind=divergence.kind,
        seq=divergence.seq,
        op=bounded(divergence.op, NAME),
        bucket=bounded(divergence.bucket, LINE) if divergence.bucket else None,
        by_rank={rank: _standing(divergence.by_rank[rank]) for rank in sorted(divergence.by_rank)},
        description=bounded(divergence.group.description, NAME) if divergence.group.description else None,
        backend=divergence.group.backend,
    )


def _standing(standing: AtDivergence) -> RankAtDivergence:
    operation = standing.operation
    if operation is None:
        return RankAtDivergence(standing.state, None, None, None, None, None, None, None, None)
    call = operation.call
    tensors = call.inputs if call.inputs.shapes else call.outputs
    frames = tuple(map(bounded_frame, call.site.frames[: MAX_CALLERS + 1])) if call.site else ()
    return RankAtDivergence(
        state=standing.state,
        op=bounded(call.op, NAME),
        shapes=tensors.shapes,
        dtype=tensors.dtype,
        reduce_op=call.reduce_op,
        root=call.root,
        peer=call.peer,
        seq=operation.seq,
        callsite=frames[0] if frames else None,
        callers=frames[1:],
        group=bounded(operation.group, NAME),
        tag=call.tag,
        in_splits=call.in_splits,
        out_splits=call.out_splits,
        entered=iso(operation.entered),
    )


def _ranks(evidence: Evidence, states: dict[int, RankState]) -> tuple[RankEntry, ...]:
    """Every rank of the job, those of which nothing is known included."""
    traces = {trace.rank: trace for trace in evidence.traces}
    world = range(min(evidence.job.world_size or 0, MAX_RANKS_WITHOUT_TRACE))
    return tuple(
        _rank(rank, traces.get(rank), states.get(rank, RankState.UNKNOWN), evidence.memory.get(rank))
        for rank in sorted({*traces, *states, *world})
    )


def _rank(rank: int, trace: Trace | None, state: RankState, memory: int | None) -> RankEntry:
    if trace is None:
        return RankEntry(rank, None, None, state, None, None, _progress(Progress()), None, memory)
    return RankEntry(
        rank=rank,
        node=bounded(trace.node, NAME) if trace.node else None,
        pid=trace.pid,
        state=state,
        exit_code=trace.exit.code if trace.exit else None,
        exception=_exception(trace),
        progress=_progress(trace.progress),
        last=_last(trace),
        memory_bytes=memory,
    )


def _progress(progress: Progress) -> ProgressEntry:
    return ProgressEntry(progress.batches, progress.forwards, progress.backwards, progress.steps, progress.loader_exhausted)


def _exception(trace: Trace) -> ExceptionEntry | None:
    mark = trace.failure or next(iter((*trace.passed_failures, *trace.thread_failures)), None)
    if mark is None:
        return None
    failure = mark.failure
    if failure is None:
        return ExceptionEntry(type="", message=bounded(str(mark.value or ""), SENTENCE))
    return ExceptionEntry(
        type=bounded(failure.type, NAME),
        message=bounded(failure.message, SENTENCE),
        uncaught=failure.uncaught,
        out_of_memory=failure.out_of_memory,
        frames=tuple(map(bounded_frame, failure.frames[:32])),
    )


def _last(trace: Trace) -> LastOperation | None:
    if not len(trace.operations):
        return None
    last = trace.operations.row(trace.rank, -1)
    return LastOperation(bounded(last.group, NAME), last.seq, bounded(last.call.op, NAME))


def _notes(evidence: Evidence, diagnosis: Diagnosis) -> tuple[str, ...]:
    """What could not be seen, each once; a note that several ranks made names them all."""
    by_text: dict[str, list[int]] = {}
    for trace in evidence.traces:
        for note in trace.notes:
            by_text.setdefault(note, []).append(trace.rank)
    own = [f"{ranks_phrase(ranks)}: {note}" for note, ranks in by_text.items()]
    awaited = [
        f"rank {rank} is alive and awaited by {ranks_phrase(waiters)}; it may still come"
        for rank, waiters in sorted(diagnosis.awaiting.items())
    ]
    dropped = [trace.rank for trace in evidence.traces if trace.dropped]
    kept = f"older operations of ranks {rank_set(dropped)} are no longer in their records"
    lines = [*evidence.notes, *diagnosis.notes, *awaited, *own, *([kept] if dropped and diagnosis.findings else [])]
    return tuple(bounded(line, LINE) for line in dict.fromkeys(lines))[:MAX_NOTES]
