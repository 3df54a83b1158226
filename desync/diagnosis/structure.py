"""Which ranks built another model than most, from what DDP says when it compares them.

DDP raises on ranks that are right as well as on those that are not, and whoever raised first says nothing.  What each rank says
of *itself* does: how many parameters it has, or in what it differs from the first rank of the group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from desync.diagnosis.board import Board
from desync.diagnosis.words import counted, named, verb
from desync.model import Cause, Certainty, Finding, Trace

NUMBERS = "DDP expects same model across all ranks"
"""What DDP raises on all ranks where their numbers of parameters differ."""
SHAPES = "appears not to match "
"""What it raises on those ranks of which a parameter differs from the first rank's."""

_NUMBER = re.compile(NUMBERS + r", but Rank \d{1,7} has (\d{1,9}) params, while rank \d{1,7} has inconsistent \d{1,9} params")
_SHAPE = re.compile(
    r"\[\d{1,7}\]: (params\[\d{1,9}\]) in this process with (sizes|strides) (\[[\d, ]{0,200}\]) "
    + SHAPES
    + r"\2 of the same param in process 0"
)


def is_refusal(message: str) -> bool:
    """Whether an error is DDP's own, because the ranks built different models."""
    return NUMBERS in message or _SHAPE.search(message) is not None


@dataclass(frozen=True, slots=True)
class Models:
    """The ranks by the model that each built, as far as they say; the largest first."""

    by_model: Mapping[str, tuple[int, ...]]
    world: int
    """How many ranks the group has."""

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that did not build what most ranks of the group built; empty without a majority."""
        sizes = [len(ranks) for ranks in self.by_model.values()]
        if len(sizes) < 2 or 2 * sizes[0] <= self.world:
            return ()
        return tuple(sorted(rank for ranks in list(self.by_model.values())[1:] for rank in ranks))


def blamed(findings: list[Finding], board: Board) -> list[Finding]:
    """The findings, with the odd ones named in the one about different models, if there is one and they can be told."""
    refused = [finding for finding in findings if finding.cause is Cause.STRUCTURE_MISMATCH]
    models = _models(board) if refused else None
    if models is None or not models.odd:
        return findings
    first = refused[0]
    return [_named(each, models) if each is first else each for each in findings if each is first or each not in refused]


def _named(finding: Finding, models: Models) -> Finding:
    odd = models.odd
    (usual, most), *others = models.by_model.items()
    own = next(model for model, ranks in others if odd[0] in ranks)
    who = named(odd)
    return replace(
        finding,
        culprit_ranks=odd,
        certainty=Certainty.LIKELY,
        summary=f"{who[0].upper()}{who[1:]} built another model than {named(most)}: {own}, the others {usual}; DDP refused it.",
        evidence=(
            *(f"{named(ranks)} {verb(ranks, 'has', 'have')} {model}" for model, ranks in models.by_model.items()),
            *finding.evidence,
        ),
    )


def _models(board: Board) -> Models | None:
    said = {rank: message for rank, trace in board.traces.items() if (message := _refusal(trace)) is not None}
    group = next((ranks for rank in said if (ranks := _group(board.traces[rank])) is not None), None)
    if group is None or not set(said) <= set(group):
        return None
    numbers = {rank: found for rank, message in said.items() if (found := _NUMBER.search(message))}
    by_rank = {rank: counted(int(found[1]), "parameter") for rank, found in numbers.items()} or _by_shape(board, said, group)
    by_model: dict[str, list[int]] = {}
    for rank, model in sorted(by_rank.items()):
        by_model.setdefault(model, []).append(rank)
    ordered = sorted(by_model.items(), key=lambda item: -len(item[1]))
    return Models({model: tuple(ranks) for model, ranks in ordered}, len(group))


def _by_shape(board: Board, said: Mapping[int, str], group: tuple[int, ...]) -> dict[int, str]:
    """Those that raised differ from the first rank of the group; those that went on do not, and count with it."""
    found = {rank: match for rank, message in said.items() if (match := _SHAPE.search(message)) is not None}
    if not found or group[0] in found:
        return {}
    by_rank = {rank: f"{match[1]} of {match[2]} {match[3]}" for rank, match in found.items()}
    refused_at = max(_entered(board.traces[rank]) for rank in by_rank)
    for rank in group:
        trace = board.traces.get(rank)
        if rank not in said and trace is not None and (rank == group[0] or _entered(trace) > refused_at):
            by_rank[rank] = f"the parameters of {named(group[:1])}"
    return by_rank


def _refusal(trace: Trace) -> str | None:
    messages = (mark.failure.message for mark in trace.marks if mark.failure is not None)
    return next((message for message in messages if is_refusal(message)), None)


def _group(trace: Trace) -> tuple[int, ...] | None:
    """The ranks of the group in which a rank called last: the one in which DDP compared."""
    table = trace.operations
    group = trace.groups.get(table.groups[table.group[-1]]) if len(table) else None
    return group.ranks if group is not None else None


def _entered(trace: Trace) -> int:
    """How many operations a rank has entered."""
    return trace.dropped + len(trace.operations)
