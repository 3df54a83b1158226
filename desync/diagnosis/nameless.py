"""Ends of which a launcher, a shell, a scheduler or Kubernetes tells without naming a rank."""

from __future__ import annotations

import signal
from dataclasses import replace

from desync.diagnosis.advice import HOST_MEMORY, advice
from desync.diagnosis.said import nobody_seen, of, quotes
from desync.diagnosis.words import closed
from desync.model import Cause, Certainty, Claim, ClaimKind, Evidence, Finding, Status

_MOST_TELLING = ("memory", "killed", "shell", "exited", "told")
_SURE = ("memory", "killed", "told")
"""Not what a shell says: it names no process of the job."""
_ENDED_HOW = {
    "memory": "A container was ended for want of memory of the host; which ranks ran in it is not said",
    "killed": "A process of the job was ended by a signal; which rank it was is not said",
    "shell": "A program was ended by a signal, as the shell says; which rank it was, if any, is not said",
    "exited": "Processes ended with a status, and why is not in what was read",
    "told": "The launcher was told to end by a signal from outside, and ended the ranks",
}
_ENDED_ADVICE = {
    "memory": HOST_MEMORY,
    "killed": advice(Cause.KILLED),
    "shell": advice(Cause.KILLED),
    "exited": "Look for what the program itself said last, and at the output of every rank.",
    "told": "Look for who sent the signal: a terminal that was closed, the scheduler (its time limit, preemption), a person.",
}


def ended(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """Processes ended, as a launcher, a shell or the scheduler says, and nothing else tells what became of the job."""
    claims = sorted(of(evidence, ClaimKind.ENDED), key=lambda claim: _MOST_TELLING.index(claim.op or "told"))
    if not claims:
        return found
    if any(not nobody_seen(each) or each.culprit_ranks or each.status is Status.HANG for each in found):
        memory_ended = [claim for claim in claims if claim.op == "memory"]
        return [*(replace(each, evidence=(*each.evidence, *quotes(memory_ended))) for each in found[:1]), *found[1:]]
    first, finished = claims[0], of(evidence, ClaimKind.FINISHED)
    if finished and not found:
        return [_after_the_end(first, finished[0], claims)] if first.op not in ("memory", "told") else found
    kernel_said = of(evidence, ClaimKind.KERNEL) if first.op in ("memory", "killed", "shell") else []
    return [
        Finding(
            status=Status.CRASH,
            cause=Cause.UNKNOWN if first.op == "exited" else Cause.KILLED,
            certainty=Certainty.LIKELY if first.op in _SURE else Certainty.POSSIBLE,
            culprit_ranks=(),
            summary=f"{_ENDED_HOW[first.op or 'told']}: {closed(first.text)}",
            advice=HOST_MEMORY if kernel_said else _ENDED_ADVICE[first.op or "told"],
            evidence=(*quotes([*claims, *kernel_said]), *(line for each in found for line in each.evidence)),
            time=first.time,
        )
    ]


def _after_the_end(first: Claim, finished: Claim, claims: list[Claim]) -> Finding:
    """A process was ended after the program had said that its work is done; who kills may kill anything."""
    native = first.op in ("killed", "shell") and first.seq not in (signal.SIGKILL, signal.SIGTERM)
    return Finding(
        status=Status.CRASH if native else Status.UNKNOWN,
        cause=Cause.TEARDOWN if native else Cause.UNKNOWN,
        certainty=Certainty.LIKELY if native else Certainty.POSSIBLE,
        culprit_ranks=(),
        summary=f"The work was done ({finished.text}), and yet a process did not end well: {closed(first.text)}",
        advice=advice(Cause.TEARDOWN),
        evidence=quotes(claims),
        time=first.time,
    )
