"""The diagnosis of jobs that desync did not watch: what records show, weighed with what messages say."""

from __future__ import annotations

from dataclasses import replace

from desync.diagnosis import aftermath, exchanges, hearsay, scalars
from desync.diagnosis.advice import advice
from desync.diagnosis.board import lay_out
from desync.diagnosis.habits import DID, Change, newest_break, odd_one
from desync.diagnosis.verdict import diagnose
from desync.diagnosis.words import called, capital, named, place, verb
from desync.model import (
    AtDivergence,
    Cause,
    Certainty,
    ClaimKind,
    Diagnosis,
    Evidence,
    Finding,
    OperationState,
    Status,
    as_it_stood,
)

_CIRCLES = frozenset({Cause.GROUP_ORDER_CYCLE, Cause.P2P_MISMATCH, Cause.GROUP_CREATION})
_NEEDS_LINES = frozenset({Cause.RANK_ONLY_COLLECTIVE, Cause.SKIPPED_COLLECTIVE, Cause.ARGUMENT_MISMATCH})
_TIMED_OUT = ("collective operation timeout", "Timed out waiting")
"""What NCCL's watchdog and gloo raise when they give up."""
_CHANGES = {
    Change.LEFT_OUT: Cause.SKIPPED_COLLECTIVE,
    Change.PUT_IN: Cause.RANK_ONLY_COLLECTIVE,
    Change.OTHER_ARGUMENTS: Cause.ARGUMENT_MISMATCH,
}


def interpret(evidence: Evidence) -> Diagnosis:
    """The findings for a job of which only dumps, logs and the like are left."""
    base = diagnose(evidence)
    stood = as_it_stood(evidence)
    if stood is not evidence and not _stood_long(base, stood):
        return base  # what the remains show besides is the end itself
    evidence = stood
    found = [
        _weighed(_decided(_hung(finding, evidence), evidence), evidence) for finding in base.findings if not _left_open(finding)
    ]
    if not found:
        board = lay_out(evidence)
        found = aftermath.findings(board) or list(base.findings) or exchanges.findings(board)
    found = _merged([_of_all(_unexplained(finding, evidence), evidence) for finding in found])
    found = hearsay.weigh(evidence, found)
    if _misnamed(evidence):
        found = [replace(finding, certainty=Certainty.POSSIBLE) for finding in found]
    status = found[0].status if found else _without_findings(evidence, base.status)
    return replace(base, findings=tuple(found), status=status, awaiting={} if found else base.awaiting)


def _stood_long(base: Diagnosis, stood: Evidence) -> bool:
    """Whether ranks had waited for longer than the user grants when the job was told to end, and it is not known why."""
    told, patience = stood.observed_at, stood.hang_after_ns
    unknown = [finding for finding in base.findings if finding.status is Status.UNKNOWN and finding.time is not None]
    return told is not None and any(told - (finding.time or told) >= patience for finding in unknown)


def _misnamed(evidence: Evidence) -> bool:
    """Whether a rank has taken part in a group that does not hold it: then the sources are not named for the ranks."""
    return any(
        trace.rank not in trace.groups[name].ranks
        for trace in evidence.traces
        for name in trace.operations.groups
        if name in trace.groups and trace.groups[name].ranks
    )


def _left_open(finding: Finding) -> bool:
    """Whether the base could not decide it: a circle, or victims only."""
    return finding.cause in _CIRCLES or (finding.cause is Cause.UNKNOWN and finding.status is Status.UNKNOWN)


def _hung(finding: Finding, evidence: Evidence) -> Finding:
    """A mismatch that the watchdog ended has hung until then; where a log has no times, the base cannot know that."""
    if finding.status is not Status.CRASH or finding.divergence is None or finding.cause not in _NEEDS_LINES:
        return finding
    came = [trace for trace in evidence.traces if trace.rank in finding.divergence.by_rank]
    failures = [mark.failure.message for trace in came for mark in trace.marks if mark.failure is not None]
    timed_out = any(words in message for message in failures for words in _TIMED_OUT)
    return replace(finding, status=Status.HANG) if timed_out else finding


def _decided(finding: Finding, evidence: Evidence) -> Finding:
    """Where no majority tells which of two calls is wrong, the one that its rank does not usually make there is."""
    where = finding.divergence
    if finding.culprit_ranks or where is None or finding.cause not in (*_NEEDS_LINES, Cause.ORDER_MISMATCH):
        return finding
    known = {rank: each.operation for rank, each in where.by_rank.items() if each.operation is not None}
    broken = odd_one({rank: newest_break(trace) for rank in known if (trace := evidence.trace(rank)) is not None})
    if broken is None or (broken.seq, broken.operation.group) != (where.seq, where.group.name):
        return finding
    others = {rank: operation for rank, operation in known.items() if rank != broken.rank}
    witness = next(iter(others.values()))
    call, group = broken.operation.call, where.group.description or where.group.name
    cause = _CHANGES.get(broken.change, Cause.ORDER_MISMATCH)
    return replace(
        finding,
        cause=cause,
        certainty=Certainty.LIKELY,
        culprit_ranks=(broken.rank,),
        summary=(
            f"{capital(named([broken.rank]))} {DID[broken.change]} {call.op} #{broken.seq} of group {group} at "
            f"{place(call.site)}, against its own habit; {named(others)} {verb(others, 'is', 'are')} in {called(witness)}."
        ),
        advice=advice(cause),
        divergence=replace(
            where,
            op=witness.call.op,
            by_rank={rank: _beside(each, rank == broken.rank) for rank, each in where.by_rank.items()},
        ),
    )


def _beside(standing: AtDivergence, odd: bool) -> AtDivergence:
    """Where a rank stands once it is known which one called the wrong thing."""
    if standing.operation is None or standing.state is OperationState.ABSENT:
        return standing
    open_ = standing.operation.pending or standing.operation.failed
    usual = OperationState.WAITING if open_ else OperationState.COMPLETED
    return replace(standing, state=OperationState.MISMATCHED if odd else usual)


def _unexplained(finding: Finding, evidence: Evidence) -> Finding:
    """Status 1 is that of an exception; where a source shows nothing but it, why (and who was first) is open."""
    traces = [trace for rank in finding.culprit_ranks if (trace := evidence.trace(rank)) is not None]
    known = any(trace.marks or len(trace.operations) or trace.exit is None or trace.exit.code != 1 for trace in traces)
    if finding.cause is not Cause.EXITED_EARLY or not traces or known:
        return finding
    who = named(finding.culprit_ranks)
    return replace(
        finding,
        cause=Cause.UNKNOWN,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=finding.culprit_ranks if len(traces) == 1 else (),
        summary=f"{capital(who)} ended with status 1, as after an exception; the exception itself is not in what was read.",
        advice=f"Look for the traceback of {who}: its own file, or the output of its node.",
    )


def _of_all(finding: Finding, evidence: Evidence) -> Finding:
    """What all ranks raise alike is a fault of the program, and of no rank."""
    world = evidence.job.world_size or 0
    if finding.cause is not Cause.EXCEPTION or finding.divergence is not None or not 1 < world == len(finding.culprit_ranks):
        return finding
    return replace(finding, culprit_ranks=())


def _merged(found: list[Finding]) -> list[Finding]:
    """Several ranks that left out parameters of one model have one fault, whichever parameters it were."""
    alike = [each for each in found if each.cause is Cause.UNUSED_PARAMETERS and each.divergence is None]
    if len(alike) < 2:
        return found
    first = alike[0]
    ranks = tuple(sorted({rank for each in alike for rank in each.culprit_ranks}))
    evidence = tuple(line for each in alike for line in (each.summary, *each.evidence))
    summary = f"{capital(named(ranks))} left parameters without gradients, not all the same ones; {first.summary}"
    merged = replace(first, culprit_ranks=ranks, summary=summary, evidence=evidence)
    return [merged if each is first else each for each in found if each is first or each not in alike]


def _weighed(finding: Finding, evidence: Evidence) -> Finding:
    """A finding whose cause rests on call sites is no more than possible where the source has none."""
    if finding.cause not in _NEEDS_LINES or finding.divergence is None:
        return finding
    if _has_lines(finding):
        told = _is_recorded(finding) and (finding.cause is Cause.ARGUMENT_MISMATCH or _has_past(finding, evidence))
        sure = told and not _by_numbers_alone(finding, evidence)
        return finding if sure else replace(finding, certainty=Certainty.POSSIBLE)
    seq, name = finding.divergence.seq, finding.divergence.group.name
    if any(claim.kind is ClaimKind.MISMATCH and claim.seq == seq for claim in evidence.claims):
        finding = scalars.told_apart(replace(finding, status=Status.CRASH), evidence)  # torch has compared them itself
        if finding.cause is Cause.ARGUMENT_MISMATCH:
            return finding
    if len(finding.culprit_ranks) == 1:
        trace = evidence.trace(finding.culprit_ranks[0])
        broken = newest_break(trace) if trace is not None else None
        if broken is not None and broken.seq == seq and broken.operation.group == name:
            cause = _CHANGES.get(broken.change)
            if cause is not None:
                return replace(finding, cause=cause, certainty=Certainty.LIKELY)
    finding = scalars.told_apart(finding, evidence)
    both = "without the lines of the calls, one call too few and one too many look alike"
    lines = finding.evidence if finding.cause is Cause.ARGUMENT_MISMATCH else (*finding.evidence, both)
    return replace(finding, certainty=Certainty.POSSIBLE, evidence=lines)


def _is_recorded(finding: Finding) -> bool:
    """Whether somebody saw the operations begin; a stack shows where a rank is, and not which of its calls it is."""
    assert finding.divergence is not None  # noqa: S101 - the caller has looked
    standing = finding.divergence.by_rank.values()
    return any(each.operation is not None and each.operation.entered is not None for each in standing)


def _has_past(finding: Finding, evidence: Evidence) -> bool:
    """Whether anything is known of what the ranks did before they parted: what is not, may have been called there."""
    assert finding.divergence is not None  # noqa: S101 - the caller has looked
    name, seq = finding.divergence.group.name, finding.divergence.seq
    tables = [trace.operations for rank in finding.divergence.by_rank if (trace := evidence.trace(rank)) is not None]
    return any(
        table.groups[group] == name and number < seq and table.calls[call].site is not None
        for table in tables
        for group, number, call in zip(table.group, table.seq, table.call, strict=True)
    ) or not any(trace.dropped for trace in evidence.traces)


def _has_lines(finding: Finding) -> bool:
    """Whether the lines of the calls are known, of who is blamed as well as of others."""
    assert finding.divergence is not None  # noqa: S101 - the caller has looked
    came = {rank: each.operation for rank, each in finding.divergence.by_rank.items() if each.operation is not None}
    lines = {rank for rank, operation in came.items() if operation.call.site is not None}
    blamed = set(finding.culprit_ranks) & set(came)
    sides = (blamed, set(came) - blamed)
    return bool(lines) and all(not side or not side.isdisjoint(lines) for side in sides)


def _by_numbers_alone(finding: Finding, evidence: Evidence) -> bool:
    """Whether only the numbers of lines say that a rank left something out: in a loop a later line may come before another."""
    assert finding.divergence is not None  # noqa: S101 - the caller has looked
    standing, blamed = finding.divergence.by_rank, finding.culprit_ranks
    own = {operation.call.site for rank in blamed if rank in standing and (operation := standing[rank].operation) is not None}
    others = [trace for rank in standing if rank not in blamed and (trace := evidence.trace(rank)) is not None]
    sites = {call.site for trace in others for call in trace.operations.calls}
    return finding.cause is Cause.SKIPPED_COLLECTIVE and own.isdisjoint(sites)


def _without_findings(evidence: Evidence, status: Status) -> Status:
    """Without the records of all ranks, or any of operations, a job is healthy only if something shows that it came to its end:
    a rank that everybody waits for can agree with all that its own record holds.
    """
    whole = evidence.ended or len(evidence.traces) >= (evidence.job.world_size or 0)
    if whole and any(len(trace.operations) for trace in evidence.traces):
        return status
    return Status.HEALTHY if any(claim.kind is ClaimKind.FINISHED for claim in evidence.claims) else Status.UNKNOWN
