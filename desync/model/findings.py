"""What the diagnosis makes of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from desync.model.calls import Group, Operation
from desync.model.words import Cause, Certainty, OperationState, RankState, Status


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: what, who, why, what to change."""

    status: Status
    cause: Cause
    certainty: Certainty
    culprit_ranks: tuple[int, ...]
    summary: str
    """One sentence."""
    advice: str
    evidence: tuple[str, ...] = ()
    follows_from: int | None = None
    """Index of the finding of which this is a consequence."""
    time: int | None = None
    """When it began."""
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True)
class AtDivergence:
    """Where one rank stands at the divergence: its operation there (or the one it is in instead)."""

    state: OperationState
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first operation at which the ranks of a group stop agreeing."""

    group: Group
    kind: str
    """collective, p2p, group_creation or rendezvous."""
    seq: int
    op: str
    by_rank: Mapping[int, AtDivergence]
    bucket: str | None = None
    time: int | None = None
    """When the last rank that came had come."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, first one first, and what could not be seen."""

    findings: Sequence[Finding]
    status: Status
    """Of the job: the first finding's, or healthy or unknown."""
    states: Mapping[int, RankState]
    notes: tuple[str, ...] = ()
    awaiting: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Each absent rank that is alive, with those that wait for it: not (yet) a fault."""
    lingering: tuple[int, ...] = ()
    """Ranks that have done their work and may not have ended: nobody waits for them, but the job ends with them."""
