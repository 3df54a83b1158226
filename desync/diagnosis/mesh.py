"""Ranks of gloo that cannot connect to each other: they fail where a group is made, and none of them is at fault."""

from __future__ import annotations

from desync.diagnosis.said import nobody_seen
from desync.diagnosis.words import capital, named, raised
from desync.model import Cause, Certainty, Evidence, Finding, Status

FAILED = "connectFullMesh failed"
"""In the error that ProcessGroupGloo raises (torch 1.13 to 2.14)."""
_ADVICE = (
    "Let the ranks reach each other: a host's name must resolve to an address of the machine that the others can reach (not to "
    "127.0.1.1 in /etc/hosts), or name the interface with GLOO_SOCKET_IFNAME; firewalls must let the ranks' ports through."
)


def unconnected(evidence: Evidence, found: list[Finding]) -> list[Finding]:
    """The finding for it, where nothing else was found than that ranks failed because of others."""
    failures = {
        trace.rank: mark.failure
        for trace in evidence.traces
        for mark in trace.marks
        if mark.failure is not None and FAILED in mark.failure.message
    }
    if not failures or not all(nobody_seen(finding) for finding in found):
        return found
    ranks, first = tuple(sorted(failures)), next(iter(failures.values()))
    finding = Finding(
        status=Status.CRASH,
        cause=Cause.RENDEZVOUS,
        certainty=Certainty.LIKELY,
        culprit_ranks=(),
        summary=f"{capital(named(ranks))} could not connect to the others: {raised(first)}.",
        advice=_ADVICE,
        evidence=tuple(f"{named([rank])} raised {raised(failures[rank])}" for rank in ranks[:16]),
        time=min((each.time for each in found if each.time is not None), default=None),
    )
    return [finding]
