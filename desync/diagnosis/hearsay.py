"""What messages say, weighed against what records show: each function looks at one kind of claim and may change the findings.

A message is less than a record: who prints an error is a victim more often than not, and a list of absent ranks says who, but
not why.  What rests on messages alone is likely at best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from desync.diagnosis.advice import HOST_MEMORY as _HOST_MEMORY
from desync.diagnosis.advice import advice
from desync.diagnosis.mesh import unconnected
from desync.diagnosis.nameless import ended
from desync.diagnosis.said import nobody_seen as _nobody_seen
from desync.diagnosis.said import of as _of
from desync.diagnosis.said import quotes as _quotes
from desync.diagnosis.words import capital, closed, named, verb
from desync.model import (
    AtDivergence,
    Call,
    Cause,
    Certainty,
    Claim,
    ClaimKind,
    Divergence,
    Evidence,
    Finding,
    Group,
    Kind,
    Operation,
    OperationState,
    Status,
)

Weigh = Callable[[Evidence, list[Finding]], list[Finding]]

_OPEN = frozenset({Cause.STALLED_RANK, Cause.UNKNOWN})
"""Causes that only say that a rank is absent, or nothing."""
_BY_ORDER = frozenset({Cause.SKIPPED_COLLECTIVE, Cause.RANK_ONLY_COLLECTIVE})
_OWN_FAULTS = frozenset(
    {Cause.EXCEPTION, Cause.OUT_OF_MEMORY, Cause.KILLED, Cause.UNUSED_PARAMETERS, Cause.EXITED_EARLY, Cause.ARGUMENT_MISMATCH}
)
DEFAULT_GROUP = "0"
_ABSENT_ADVICE = "Look at the log and the stack of these ranks: they are awaited, those that complain only waited."


def weigh(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """The findings after all claims have been heard."""
    for each in _ALL:
        found = each(evidence, found)
    return found


def _decided(found: list[Finding]) -> bool:
    """Whether somebody's own fault has been found already."""
    return any(finding.cause in _OWN_FAULTS for finding in found)


def kernel(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """The kernel's or the scheduler's word on who was ended for want of memory."""
    claims = _of(evidence, ClaimKind.KERNEL)
    if not claims:
        return found
    ranks = tuple(sorted({rank for claim in claims for rank in claim.ranks}))
    weighed = [
        replace(finding, advice=_HOST_MEMORY, evidence=(*finding.evidence, *_quotes(claims)))
        if finding.cause is Cause.KILLED
        else finding
        for finding in found
    ]
    if any(finding.cause is Cause.KILLED for finding in found) or not ranks or _decided(found):
        return weighed
    killed = Finding(
        status=Status.CRASH,
        cause=Cause.KILLED,
        certainty=Certainty.LIKELY,
        culprit_ranks=ranks,
        summary=f"{capital(named(ranks))} {verb(ranks, 'was', 'were')} ended for want of memory of the host.",
        advice=_HOST_MEMORY,
        evidence=_quotes(claims),
        time=min((claim.time for claim in claims if claim.time is not None), default=None),
    )
    return [killed, *(finding for finding in weighed if finding.cause not in _OPEN)]


def raised(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """An exception that is nobody's consequence, of a rank that the log does not name."""
    claims = _of(evidence, ClaimKind.RAISED)
    if not claims or _decided(found):
        return found
    first = claims[0]
    if first.op is not None:
        return [_ended(first, claims), *(each for each in found if each.cause not in _OPEN)]
    memory = "out of memory" in first.text or "OutOfMemory" in first.text
    cause = Cause.OUT_OF_MEMORY if memory else Cause.EXCEPTION
    who = named(first.ranks) if first.ranks else "a rank that the log does not name"
    finding = Finding(
        status=Status.CRASH,
        cause=cause,
        certainty=Certainty.POSSIBLE if first.ranks else Certainty.LIKELY,
        culprit_ranks=first.ranks,
        summary=f"{capital(who)} raised {closed(first.text)}",
        advice=advice(cause),
        evidence=_quotes(claims),
        time=first.time,
    )
    return [finding, *(each for each in found if each.cause not in _OPEN)]


def _ended(first: Claim, claims: list[Claim]) -> Finding:
    """The launcher tells of the end of a process, and not which rank it was."""
    cause = Cause.KILLED if first.op == "killed" else Cause.UNKNOWN
    return Finding(
        status=Status.CRASH,
        cause=cause,
        certainty=Certainty.LIKELY if cause is Cause.KILLED else Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=f"A rank that the log does not name was ended: {closed(first.text)}",
        advice=advice(cause),
        evidence=_quotes(claims),
        time=first.time,
    )


def structure(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """DDP compared the models of the ranks and refused."""
    claims = _of(evidence, ClaimKind.STRUCTURE)
    if not claims:
        return found
    claim = claims[0]
    who = (
        f"{capital(named(claim.ranks))} built another model than the others" if claim.ranks else "Ranks built different models"
    )
    finding = Finding(
        status=Status.CRASH,
        cause=Cause.STRUCTURE_MISMATCH,
        certainty=Certainty.PROVEN if claim.ranks else Certainty.LIKELY,
        culprit_ranks=claim.ranks,
        summary=f"{who}: {closed(claim.text)}",
        advice="Build the same model on all ranks: same layers, same order, same sizes; look at what depends on the rank.",
        evidence=_quotes(claims),
        time=claim.time,
    )
    return [finding, *(each for each in found if each.cause not in _OPEN)]


def sizes(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """gloo found that a peer's buffer is larger than its own; which of the two is wrong it does not say."""
    claims = [claim for claim in _of(evidence, ClaimKind.MISMATCH) if claim.seq is None]
    if not claims or _decided(found):
        return found
    finding = Finding(
        status=Status.CRASH,
        cause=Cause.ARGUMENT_MISMATCH,
        certainty=Certainty.LIKELY,
        culprit_ranks=(),
        summary=f"Two ranks met in one operation with different sizes ({claims[0].text}); which is wrong is not in the log.",
        advice=advice(Cause.ARGUMENT_MISMATCH),
        evidence=_quotes(claims),
        time=claims[0].time,
    )
    return [finding, *(each for each in found if each.cause not in _OPEN)]


def refused(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """torch's own wrapper refused an operation, and the log does not show what each rank called."""
    claims = [claim for claim in _of(evidence, ClaimKind.MISMATCH) if claim.seq is not None]
    if not claims or not all(_nobody_seen(finding) for finding in found):
        return found
    claim = claims[0]
    who = f"{capital(named(claim.ranks))} called something else than others" if claim.ranks else "Ranks called different things"
    finding = Finding(
        status=Status.CRASH,
        cause=Cause.ARGUMENT_MISMATCH,
        certainty=Certainty.LIKELY if claim.ranks else Certainty.POSSIBLE,
        culprit_ranks=claim.ranks,
        summary=f"{who}: {closed(claim.text)}",
        advice=advice(Cause.ARGUMENT_MISMATCH),
        evidence=_quotes(claims),
        time=claim.time,
        divergence=_divergence(evidence, claim),
    )
    return [finding]


def rendezvous(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """Not all came to init_process_group, or too many did."""
    claims = _of(evidence, ClaimKind.RENDEZVOUS)
    if not claims or _decided(found) or any(finding.divergence is not None for finding in found):
        return found
    claim = claims[-1]
    blamed = claim.ranks if claim.op is not None else ()  # without it the words are those of who waited
    who = f"{capital(named(blamed))} never came to the rendezvous" if blamed else "The ranks did not find together"
    unopened = "failed to listen" in claim.text
    finding = Finding(
        status=Status.CRASH if unopened else Status.HANG,
        cause=Cause.RENDEZVOUS,
        certainty=Certainty.LIKELY,
        culprit_ranks=blamed,
        summary=f"{who}: {closed(claim.text)}",
        advice=_advice_on_port(claim.text) if unopened else advice(Cause.RENDEZVOUS),
        evidence=_quotes(claims),
        time=claim.time,
    )
    return [finding]


def _advice_on_port(said: str) -> str:
    """What to do where the server of the rendezvous could not open its port."""
    if any(words in said.lower() for words in ("address already in use", "eaddrinuse", "errno: 98")):
        return (
            "The port of the rendezvous is held by another job on that machine, or by a process left of an earlier one: "
            "choose another port (MASTER_PORT, --master-port, --rdzv-endpoint), or end that process (ss -ltnp shows it)."
        )
    return "The port of the rendezvous cannot be opened on that machine: check MASTER_ADDR and MASTER_PORT, and that it may be."


def absent(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """A list of ranks that did not come (monitored_barrier's, DDP's), or did less than the others (ncclras)."""
    behind_in = [claim for claim in _of(evidence, ClaimKind.BEHIND) if claim.op is not None]
    claims = [claim for claim in (*_of(evidence, ClaimKind.ABSENT), *behind_in) if claim.ranks]
    named_ranks = {rank for finding in found for rank in finding.culprit_ranks}
    if _decided(found):
        return found
    if named_ranks:
        return [_said_itself(finding, claims) for finding in found]
    if not claims:
        return _behind_unnamed(behind_in, found)
    claim = max(claims, key=lambda each: (each.op is not None, len(each.ranks)))
    who = named(claim.ranks)
    behind = claim.kind is ClaimKind.BEHIND
    what = f"to the {claim.op} that the others are in" if claim.op else "where the others are"
    did = f"{verb(claim.ranks, 'is', 'are')} behind in {claim.op}" if behind else f"did not come {what}"
    finding = Finding(
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=claim.ranks,
        summary=f"{capital(who)} {did}; why is not in the log.",
        advice=_ABSENT_ADVICE,
        evidence=_quotes(claims),
        time=claim.time,
        divergence=_divergence(evidence, claim),
    )
    return [finding, *(each for each in found if not (each.cause is Cause.UNKNOWN and not each.culprit_ranks))]


def _said_itself(finding: Finding, claims: list[Claim]) -> Finding:
    """A rank that was thought to have left no record, with what it has said of itself."""
    own = [claim for claim in claims if claim.by in claim.ranks and set(claim.ranks) <= set(finding.culprit_ranks)]
    if not own or not _nobody_seen(finding) or {rank for claim in own for rank in claim.ranks} != set(finding.culprit_ranks):
        return finding
    who = named(finding.culprit_ranks)
    return replace(
        finding,
        cause=Cause.STALLED_RANK,
        summary=f"{capital(who)} did not come to where the others wait, and said: {closed(own[0].text)}",
        advice=_ABSENT_ADVICE,
        evidence=(*_quotes(own), *finding.evidence),
    )


def _behind_unnamed(claims: list[Claim], found: list[Finding]) -> list[Finding]:
    """ncclras shows that a process is behind, and no communicator tells which rank of the job it is."""
    if not claims or any(finding.cause is not Cause.UNKNOWN for finding in found):
        return found
    finding = Finding(
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        certainty=Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=f"A rank is behind: {claims[0].text}; which rank that is, the answers do not tell.",
        advice="Look at the log and the stack of this process (py-spy dump --pid PID on its host): it is awaited.",
        evidence=_quotes(claims),
        time=claims[0].time,
    )
    return [finding]


def _divergence(evidence: Evidence, claim: Claim) -> Divergence | None:
    """What a claim says of an operation; without a number of its own it is called the first that the source shows."""
    if claim.op is None:
        return None
    name = claim.group or DEFAULT_GROUP
    groups = [group for trace in evidence.traces for group in trace.groups.values() if group.name == name]
    members = groups[0] if groups else Group(name, tuple(range(evidence.job.world_size or max(claim.ranks) + 1)))
    seq = claim.seq or 1
    call = Call(op=claim.op, kind=Kind.COLLECTIVE)
    by_rank = {}
    for rank in members.ranks:
        there = rank not in claim.ranks
        waiting = Operation(rank, 0, name, seq, call, 0, None, None, None, failed=False, pending=True) if there else None
        by_rank[rank] = AtDivergence(OperationState.WAITING if there else OperationState.ABSENT, waiting)
    return Divergence(members, "collective", seq, claim.op, by_rank, time=claim.time)


def _may_come_of_memory(finding: Finding) -> bool:
    """Whether a rank that went on without what it had begun would look like this."""
    out_of_step = finding.cause is Cause.ARGUMENT_MISMATCH and finding.certainty is Certainty.POSSIBLE
    return finding.cause in _OPEN | _BY_ORDER or out_of_step


def memory(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """A rank printed that memory ran out, went on, and is the one that is now out of step."""
    claims = _of(evidence, ClaimKind.OUT_OF_MEMORY)
    ranks = {rank for claim in claims for rank in claim.ranks}
    weighed = []
    for finding in found:
        if ranks.issuperset(finding.culprit_ranks) and finding.culprit_ranks and _may_come_of_memory(finding):
            who = named(finding.culprit_ranks)
            finding = replace(
                finding,
                cause=Cause.OUT_OF_MEMORY,
                certainty=Certainty.LIKELY,
                summary=f"{capital(who)} ran out of memory, went on and fell out of step. {finding.summary}",
                advice=advice(Cause.OUT_OF_MEMORY),
                evidence=(*_quotes(claims), *finding.evidence),
            )
        weighed.append(finding)
    return weighed


def moving(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """The rank that the others gave up waiting for was still at work: that is slow, and no hang."""
    claims = _of(evidence, ClaimKind.MOVING)
    ranks = {rank for claim in claims for rank in claim.ranks}
    weighed = []
    for finding in found:
        if ranks and finding.cause in _OPEN and set(finding.culprit_ranks) == ranks:
            finding = replace(
                finding,
                status=Status.SLOW,
                cause=Cause.SLOW_RANK,
                certainty=Certainty.LIKELY,
                summary=f"{capital(named(ranks))} was late but still at work ({claims[0].text}); the others gave up waiting.",
                advice=advice(Cause.SLOW_RANK),
                evidence=(*_quotes(claims), *finding.evidence),
            )
        weighed.append(finding)
    return weighed


def network(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """Errors of the network, where no rank is to blame: a link is no rank, and who writes of it is only at one end."""
    claims = _of(evidence, ClaimKind.NETWORK)
    if not claims or (not found and _of(evidence, ClaimKind.FINISHED)):
        return found
    stalled = [finding for finding in found if finding.cause is Cause.COMMUNICATION_STALLED]
    if stalled or all(_nobody_seen(finding) for finding in found):
        hung = next((finding for finding in (*stalled, *found) if finding.status is Status.HANG), None)
        tail = f". {hung.summary}" if hung is not None else "; the ranks that ended did so because of it." if found else "."
        finding = Finding(
            status=Status.HANG if hung is not None else Status.CRASH if found or evidence.ended else Status.UNKNOWN,
            cause=Cause.COMMUNICATION_STALLED,
            certainty=Certainty.LIKELY if stalled or (found and hung is None) else Certainty.POSSIBLE,
            culprit_ranks=(),
            summary=f"The network failed ({claims[0].text}){tail}",
            advice="Look at the links of the machines named: NIC, cable, switch port; ibstat and the fabric's counters.",
            evidence=_quotes(claims),
            time=claims[0].time,
            divergence=hung.divergence if hung is not None else None,
        )
        return [finding]
    return [replace(found[0], evidence=(*found[0].evidence, *_quotes(claims))), *found[1:]]


def teardown(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """A watchdog without heartbeat: after the work is done that is the exit's doing; before, it says little."""
    claims = _of(evidence, ClaimKind.TEARDOWN)
    finished = _of(evidence, ClaimKind.FINISHED)
    if not claims or _decided(found) or any(finding.divergence is not None for finding in found):
        return found
    ranks = tuple(sorted({rank for claim in claims for rank in claim.ranks}))
    whom = named(ranks) if ranks else "ranks"
    if finished:
        summary = f"The work was done ({finished[0].text}); {whom} did not get out of the exit."
        cause, certainty = Cause.TEARDOWN, Certainty.LIKELY
    else:
        summary = f"The watchdog of {whom} got stuck inside CUDA or NCCL, or behind the GIL; the log does not say which."
        cause, certainty = Cause.UNKNOWN, Certainty.POSSIBLE
    finding = Finding(
        status=Status.HANG,
        cause=cause,
        certainty=certainty,
        culprit_ranks=(),
        summary=summary,
        advice=advice(cause),
        evidence=_quotes(claims),
        time=claims[0].time,
    )
    return [finding]


_ALL: tuple[Weigh, ...] = (
    kernel,
    raised,
    structure,
    sizes,
    refused,
    rendezvous,
    absent,
    memory,
    moving,
    ended,
    network,
    unconnected,
    teardown,
)
