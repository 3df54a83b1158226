"""Claims as those who weigh them need them."""

from __future__ import annotations

from collections.abc import Iterable

from desync.diagnosis.words import named
from desync.model import Cause, Certainty, Claim, ClaimKind, Evidence, Finding


def of(evidence: Evidence, kind: ClaimKind) -> list[Claim]:
    """The claims of one kind."""
    return [claim for claim in evidence.claims if claim.kind is kind]


def quotes(claims: Iterable[Claim]) -> tuple[str, ...]:
    """The words of claims, each with who said it."""
    said = (f"{named([claim.by])}: {claim.text}" if claim.by is not None else claim.text for claim in claims)
    return tuple(dict.fromkeys(said))[:16]


def nobody_seen(finding: Finding) -> bool:
    """Whether a finding says no more than that ranks failed because of others, or that some left no word."""
    return finding.cause is Cause.UNKNOWN and finding.certainty is Certainty.POSSIBLE
