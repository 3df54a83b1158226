"""How far a rank had come in its work when it entered an operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from desync.model import CallSite, Mark, MarkKind, Operation, Trace

Loader: TypeAlias = "tuple[str | None, CallSite | None]"
"""What tells the loaders of a program apart: the name of the data, and the line that fetches from it."""


@dataclass(frozen=True, slots=True)
class Position:
    """Counts up to one point of a rank's life."""

    batches: int
    forwards: int
    backwards: int
    steps: int
    passes: tuple[int, ...]
    """Batches of each finished pass over a loader."""
    fetched: int | None
    """Batches of the pass that is going on; None outside of one (or where its marks were lost)."""
    loaders: tuple[Loader | None, ...]
    """Which loader each finished pass was over, and then that of the pass that is going on; None where that is not known."""
    last: Mark | None
    """The newest mark of progress before the point."""
    turn: MarkKind | None
    """What has happened in the turn that is going on: a batch was fetched (FETCH), or also a forward was run (FORWARD).

    None outside of one: the newest batch has had its backward, or was left behind.
    """

    @property
    def left_out(self) -> int:
        """Batches whose turn is over and that had no backward (those of a validation among them)."""
        return self.batches - (self.turn is not None) - self.backwards

    @property
    def loader_exhausted(self) -> bool:
        """Whether the last that happened with a loader was its end."""
        return self.fetched is None and bool(self.passes)

    def loader(self, number: int) -> Loader | None:
        """The loader of a pass (from 0), as far as that is known."""
        return self.loaders[number] if number < len(self.loaders) else None

    def in_pass(self, number: int) -> int | None:
        """Batches of a pass (from 0), finished or going on; None if it has not begun."""
        if number < len(self.passes):
            return self.passes[number]
        return self.fetched if number == len(self.passes) else None


def number_of(trace: Trace, operation: Operation) -> int:
    """Which operation of its rank it is, counted from 1 over all groups, those that the ring dropped included."""
    return trace.dropped + operation.index + 1


def position(trace: Trace, before: Operation | None = None) -> Position:
    """Where a rank was when it entered an operation; without one, where it is now."""
    limit = number_of(trace, before) if before is not None else None
    past = [mark for mark in trace.marks if limit is None or mark.after < limit]
    later = trace.marks[len(past) :] if limit is not None else ()
    progress = trace.progress

    def so_far(total: int, kind: MarkKind) -> int:
        return total - sum(1 for mark in later if mark.kind is kind and (kind is not MarkKind.FETCH or mark.left))

    ended = sum(1 for mark in later if mark.kind is MarkKind.EXHAUSTED)
    passes = progress.passes[: len(progress.passes) - ended] if ended else progress.passes
    return Position(
        batches=so_far(progress.batches, MarkKind.FETCH),
        forwards=so_far(progress.forwards, MarkKind.FORWARD),
        backwards=so_far(progress.backwards, MarkKind.BACKWARD),
        steps=so_far(progress.steps, MarkKind.STEP),
        passes=passes,
        fetched=_fetched(past),
        loaders=_loaders(past, len(passes)),
        last=past[-1] if past else None,
        turn=_turn(past),
    )


def _loaders(past: list[Mark], passes: int) -> tuple[Loader | None, ...]:
    ended = [(mark.name, mark.site) for mark in past if mark.kind is MarkKind.EXHAUSTED][-passes:] if passes else []
    newest = next((mark for mark in reversed(past) if mark.kind in (MarkKind.FETCH, MarkKind.EXHAUSTED)), None)
    going_on = (newest.name, newest.site) if newest is not None and newest.kind is MarkKind.FETCH else None
    return (*[None] * (passes - len(ended)), *ended, going_on)


def _turn(past: list[Mark]) -> MarkKind | None:
    kinds = (MarkKind.FETCH, MarkKind.FORWARD, MarkKind.BACKWARD, MarkKind.STEP, MarkKind.EXHAUSTED)
    newest = next((mark for mark in reversed(past) if mark.kind in kinds), None)
    if newest is None or (newest.kind is MarkKind.FETCH and newest.left is None):
        return None
    return newest.kind if newest.kind in (MarkKind.FETCH, MarkKind.FORWARD) else None


def _fetched(past: list[Mark]) -> int | None:
    for mark in reversed(past):
        if mark.kind is MarkKind.EXHAUSTED:
            return None
        if mark.kind is MarkKind.FETCH and isinstance(mark.value, int):
            # A fetch that has not come back is of a batch that the rank does not have yet.
            return mark.value if mark.left is not None else mark.value - 1
    return None


def last_step(trace: Trace, until: int | None) -> tuple[Mark, Mark] | None:
    """The DDP forward and the backward of the newest step before a time (epoch ns), if its backward is over.

    A backward may run others inside itself (checkpoints do), or follow no forward of DDP; a forward may have none after it.
    """
    marks = [mark for mark in trace.marks if until is None or mark.time <= until]
    backwards = [(mark.left, place) for place, mark in enumerate(marks) if mark.kind is MarkKind.BACKWARD]
    if not backwards or any(left is None for left, _ in backwards):
        return None
    _, newest = max((left or 0, place) for left, place in backwards)
    begun = marks[newest].time
    before = max((place for left, place in backwards if place < newest and (left or 0) <= begun), default=-1)
    forwards = [mark for mark in marks[before + 1 : newest] if mark.kind is MarkKind.FORWARD]
    return (forwards[-1], marks[newest]) if forwards else None


def pending_fetch(trace: Trace) -> Mark | None:
    """The batch for which the rank is waiting, if that is the last that it did."""
    last = next((mark for mark in reversed(trace.marks) if mark.kind is not MarkKind.EXCEPTION), None)
    if last is None or last.kind is not MarkKind.FETCH or last.left is not None:
        return None
    held = len(trace.operations) + trace.dropped
    return last if last.after >= held else None


def uneven_pass(one: Position, other: Position) -> int | None:
    """The first pass (from 0) of which ``one`` finished with fewer batches than ``other`` had; None if there is none.

    Passes over different loaders are not compared, nor what comes after them: a rank may evaluate on its own.
    """
    offset = max(0, len(one.passes) - len(other.passes) - 1)
    for number in range(offset, len(one.passes)):
        loaders = {one.loader(number), other.loader(number)} - {None}
        if len(loaders) > 1:
            return None
        theirs = other.in_pass(number)
        if theirs is not None and theirs > one.passes[number]:
            return number
        if theirs is not None and number < len(other.passes) and theirs < one.passes[number]:
            return None  # it is the other way round
    return None


def forwards_so_far(trace: Trace, before: Operation | None) -> dict[int, bool]:
    """The DDP forwards of which marks are left, by their number from 1, and whether they ran under ``no_sync()``."""
    limit = number_of(trace, before) if before is not None else None
    marks = [mark for mark in trace.marks if mark.kind is MarkKind.FORWARD]
    first = max(trace.progress.forwards, len(marks)) - len(marks) + 1
    return {
        number: mark.value == "no_sync" for number, mark in enumerate(marks, start=first) if limit is None or mark.after < limit
    }
