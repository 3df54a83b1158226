"""A rank that others wait for, with all that a cause may ask about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from desync.diagnosis.endings import Ending, Manner
from desync.diagnosis.frontier import Parting
from desync.diagnosis.progress import Position, last_step, position
from desync.model import Activity, CallSite, Cause, Certainty, Evidence, Kind, Mark, Operation, Trace


@dataclass(frozen=True, slots=True)
class Suspect:
    """One suspect at one parting, beside a witness: a rank that did what the majority did."""

    evidence: Evidence
    parting: Parting
    trace: Trace
    """The suspect's."""
    witness: Trace
    theirs: Operation
    """What the witness called at the parting."""
    own: Operation | None
    """What the suspect called there; None if it is absent."""
    ending: Ending | None
    sites: Callable[[int], frozenset[CallSite]]
    """All call sites that a rank's collectives ever came from."""
    at: Position = field(init=False)
    """Where the suspect was at its own operation, or is now."""
    witness_at: Position = field(init=False)

    def __post_init__(self) -> None:
        """Find both positions, which several causes ask for."""
        object.__setattr__(self, "at", position(self.trace, self.own))
        object.__setattr__(self, "witness_at", position(self.witness, self.theirs))

    @property
    def rank(self) -> int:
        """The suspect."""
        return self.trace.rank

    @property
    def waiting(self) -> tuple[int, ...]:
        """Those that wait for it."""
        return tuple(rank for rank in self.parting.came if rank != self.rank and not self._beside(rank))

    def _beside(self, rank: int) -> bool:
        """Whether another rank stands with the suspect at the parting."""
        return any(self.rank in cluster and rank in cluster for cluster in self.parting.clusters)

    @property
    def activity(self) -> Activity | None:
        """How its process moved while it was waited for."""
        return self.evidence.activities.get(self.rank)

    @property
    def unmarked(self) -> bool:
        """Whether no mark of the suspect or of the witness is known: only the order of their calls can tell of their ways."""
        return not self.trace.marks and not self.witness.marks

    @property
    def gone(self) -> bool:
        """Whether it has ended (and not merely raised)."""
        return self.ending is not None and self.ending.manner is not Manner.HOLDING

    @property
    def can_come(self) -> bool:
        """Whether it could still do what is waited for: it is alive and has not called anything else there."""
        return self.own is None and self.ending is None

    @property
    def last_step(self) -> tuple[Mark, Mark] | None:
        """The DDP forward and the backward of its newest step before the parting, if that backward is over."""
        return last_step(self.trace, self.own.entered if self.own is not None else None)

    @property
    def tidied_up(self) -> bool:
        """Whether it came to the end of its program: it destroyed its groups."""
        calls = self.trace.operations.calls
        return any(call.kind is Kind.GROUP and call.op == "destroy_process_group" for call in calls)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a suspect does not come: one per suspect; equal causes of several suspects become one finding."""

    cause: Cause
    certainty: Certainty
    what: str
    """What the suspect did, to stand after its name: "ran out of data after 7 batches"."""
    evidence: tuple[str, ...] = ()
    advice: str | None = None
    """Where the cause's usual advice does not fit."""
    time: int | None = None
    blames: bool = True
    """Whether it is the suspect's own doing; who only says that ranks differ may be the one that is right."""


def same_call(suspect: Suspect) -> bool:
    """Whether suspect and witness are at the same call: same operation, same bucket, same line."""
    own, theirs = suspect.own, suspect.theirs
    if own is None or own.call.op != theirs.call.op or own.call.bucket != theirs.call.bucket:
        return False
    return own.call.site == theirs.call.site or _same_line(suspect)


def _same_line(suspect: Suspect) -> bool:
    """Whether both came to one line on ways of their own; where one knows the other's way, it is another call of a helper."""
    own = suspect.own.call.site if suspect.own is not None else None
    theirs = suspect.theirs.call.site
    if own is None or theirs is None or own.innermost != theirs.innermost:
        return False
    return own not in suspect.sites(suspect.witness.rank) and theirs not in suspect.sites(suspect.rank)


def went_past(suspect: Suspect) -> bool:
    """Whether it stands further down the same function than the others, in the same turn.

    Its call is new to the others.  That it is the same turn the marks say, or that nobody has made either call before.
    """
    own = suspect.own.call.site if suspect.own is not None else None
    theirs = suspect.theirs.call.site
    if own is None or theirs is None or own in suspect.sites(suspect.witness.rank):
        return False
    if not _in_one_turn(suspect) and (_dropped(suspect) or theirs in suspect.sites(suspect.rank)):
        return False
    frames = zip(reversed(own.frames), reversed(theirs.frames), strict=False)
    mine, others = next(((one, other) for one, other in frames if one != other), (own.innermost, own.innermost))
    return (mine.file, mine.function) == (others.file, others.function) and mine.line > others.line


def _in_one_turn(suspect: Suspect) -> bool:
    """Whether the marks of both show the same turn of the loop over data."""
    turns = [(at.batches, at.forwards, at.backwards, at.steps) for at in (suspect.at, suspect.witness_at)]
    return turns[0] == turns[1] and any(turns[0])


def _dropped(suspect: Suspect) -> bool:
    return suspect.trace.dropped > 0 or suspect.witness.dropped > 0


def unless_it_comes(suspect: Suspect) -> Certainty:
    """Proven where it cannot come any more, likely where it still could."""
    return Certainty.LIKELY if suspect.can_come else Certainty.PROVEN
