"""Causes that show in the turns of a rank's loop: data that ended, a loop that was left, a step that was skipped.

They live by the marks of loaders, forwards and backwards, and by the loops of the source; see :mod:`desync.diagnosis.causes`.
"""

from __future__ import annotations

from desync.diagnosis.advice import SAME_BACKWARDS
from desync.diagnosis.progress import forwards_so_far, number_of, uneven_pass
from desync.diagnosis.suspect import Explanation, Suspect, same_call, unless_it_comes
from desync.diagnosis.words import called, counted, named, place
from desync.model import CallSite, Cause, Certainty, MarkKind, Operation, Trace


def uneven_inputs(suspect: Suspect) -> Explanation | None:
    """Its data ended before the others'."""
    number = uneven_pass(suspect.at, suspect.witness_at)
    if number is None:
        return None
    own, theirs = suspect.at.passes[number], suspect.witness_at.in_pass(number)
    which = "" if number == 0 and len(suspect.at.passes) == 1 else f" in pass {number + 1} over its data"
    return Explanation(
        Cause.UNEVEN_INPUTS,
        unless_it_comes(suspect),
        f"ran out of data after {counted(own, 'batch')}{which}",
        evidence=(
            f"{named([suspect.rank])}: loader exhausted after {counted(own, 'batch')}{which}",
            f"{named([suspect.witness.rank])}: at batch {theirs}",
        ),
    )


def left_loop_early(suspect: Suspect) -> Explanation | None:
    """It left the loop though it still had data."""
    at, there = suspect.at, suspect.witness_at
    behind = at.backwards < there.backwards or (at.backwards == there.backwards and at.batches < there.batches)
    where = f", and is now at {place(suspect.own.call.site)}" if suspect.own is not None else ""
    if not there.backwards and not there.batches:
        return _fewer_turns(suspect, where)
    # Data that ended is no leaving, unless the others have begun another pass over theirs.
    passes = len(there.passes) + (there.fetched is not None)
    if not behind or (at.loader_exhausted and passes <= len(at.passes)) or not _left_the_loop(suspect):
        return None
    told = same_loop(suspect) is not None
    if not told and suspect.own is not None and at.turn is MarkKind.FORWARD:
        return None  # nothing says that it is behind the loop: it may be about to run the backward of this turn
    steps = at.backwards or at.batches
    data = ", and began no further pass over its data" if at.loader_exhausted else ", and had more data" if at.batches else ""
    return Explanation(
        Cause.LEFT_LOOP_EARLY,
        unless_it_comes(suspect) if told or suspect.own is None else Certainty.LIKELY,
        f"left its loop after {counted(steps, 'step' if at.backwards else 'batch')}{where}",
        evidence=(
            f"{named([suspect.rank])}: {counted(at.backwards, 'backward')}, {counted(at.batches, 'batch')}{data}",
            f"{named([suspect.witness.rank])}: {counted(there.backwards, 'backward')}, {counted(there.batches, 'batch')}",
        ),
    )


def _fewer_turns(suspect: Suspect, where: str) -> Explanation | None:
    """The same of a loop that leaves no marks: the source shows the loop, and the calls in it are counted."""
    if suspect.trace.dropped or suspect.witness.dropped:
        return None  # turns that are lost cannot be counted, and another call in them would look like one turn less
    if same_loop(suspect) is not False or not _left_the_loop(suspect):
        return None
    site = suspect.theirs.call.site
    own, theirs = _calls_from(suspect.trace, site, suspect.own), _calls_from(suspect.witness, site, suspect.theirs)
    if own + 1 > theirs:
        return None
    return Explanation(
        Cause.LEFT_LOOP_EARLY,
        Certainty.LIKELY,
        f"came {counted(own, 'time')} to {place(site)}, one turn less than the others{where}",
        evidence=(f"calls from {place(site)}: {own} on {named([suspect.rank])}, {theirs} on {named([suspect.witness.rank])}",),
    )


def _calls_from(trace: Trace, site: CallSite | None, until: Operation | None) -> int:
    last = until.index if until is not None else len(trace.operations)
    return sum(1 for row in trace.operations.rows(trace.rank) if row.call.site == site and row.index <= last)


def same_loop(suspect: Suspect) -> bool | None:
    """Whether suspect and witness are in the same loop of the same function; None where the source does not tell."""
    if suspect.own is None or suspect.own.call.site is None or suspect.theirs.call.site is None:
        return None
    theirs = {(frame.file, frame.function): frame.line for frame in suspect.theirs.call.site.frames}
    for frame in suspect.own.call.site.frames:
        line, loops = theirs.get((frame.file, frame.function)), suspect.evidence.loops.get(frame.file)
        if line is None or loops is None:
            continue
        around = [(first, last) for first, last in loops if first <= line <= last]
        if not around:
            continue  # the loop, if there is one, is in a caller
        # Of nested loops, any: behind the inner one a rank may rightly be, where its turn of the outer one goes on.
        return any(first <= frame.line <= last for first, last in around)
    return None


def _left_the_loop(suspect: Suspect) -> bool:
    """Whether it is now in code behind the loop: at a line where it had never been, or through to the end."""
    site = suspect.theirs.call.site
    looped = site is not None and site in suspect.sites(suspect.rank)
    if suspect.own is None:
        return suspect.gone and suspect.tidied_up and looped
    if (inside := same_loop(suspect)) is not None:
        return looped and not inside
    own = suspect.own.call.site
    rows = suspect.trace.operations.rows(suspect.rank)
    earlier = any(row.call.site == own for row in rows if row.index < suspect.own.index)
    return own is not None and own != site and not earlier and looped


def skipped_backward(suspect: Suspect) -> Explanation | None:
    """It used as many batches as the others and ran fewer backwards: it left a step's gradients out and went on."""
    at, there = suspect.at, suspect.witness_at
    moved_on = suspect.own is not None or (suspect.gone and suspect.tidied_up)
    if not moved_on or not at.batches or at.batches < there.batches or at.backwards >= there.backwards:
        return None
    if at.left_out <= there.left_out:
        return None  # it made its call in the middle of a turn, and its backward may have been about to come
    less = there.backwards - at.backwards
    return Explanation(
        Cause.SKIPPED_COLLECTIVE,
        Certainty.PROVEN,
        f"ran {counted(at.backwards, 'backward')} for {counted(at.batches, 'batch')}, {less} less than the others",
        evidence=(
            f"{named([suspect.rank])}: {counted(at.batches, 'batch')}, {counted(at.backwards, 'backward')}",
            f"{named([suspect.witness.rank])}: {counted(there.batches, 'batch')}, {counted(there.backwards, 'backward')}",
        ),
    )


def once_more(suspect: Suspect) -> Explanation | None:
    """It repeated the call that all had just made, in the same turn of its loop: a key more to loop over."""
    own = suspect.own
    if own is None or same_call(suspect):
        return None
    before = suspect.parting.board.lanes[suspect.rank].at(own.seq - 1)
    theirs = suspect.parting.board.lanes[suspect.witness.rank].at(own.seq - 1)
    if before is None or theirs is None or not before.call.site == theirs.call.site == own.call.site:
        return None
    turned = (MarkKind.FETCH, MarkKind.FORWARD, MarkKind.BACKWARD, MarkKind.STEP)
    since = number_of(suspect.trace, before)
    known = suspect.at.batches or suspect.at.backwards
    if not known or any(mark.after >= since and mark.kind in turned for mark in suspect.trace.marks):
        return None
    return Explanation(
        Cause.RANK_ONLY_COLLECTIVE,
        Certainty.PROVEN,
        f"called {called(own)} at {place(own.call.site)} once more than the others",
        evidence=(f"{named([suspect.rank])} made that call twice in a row, in one turn of its loop",),
    )


def more_no_sync(suspect: Suspect) -> Explanation | None:
    """It ran forwards under no_sync() that the others synchronised."""
    mine, others = forwards_so_far(suspect.trace, suspect.own), forwards_so_far(suspect.witness, suspect.theirs)
    known = mine.keys() & others.keys()  # the rings may reach back to different forwards
    own, theirs = (sum(forwards[number] for number in known) for forwards in (mine, others))
    if own <= theirs or suspect.theirs.call.bucket is None:
        return None
    return Explanation(
        Cause.SKIPPED_COLLECTIVE,
        unless_it_comes(suspect),
        f"ran {counted(own - theirs, 'forward')} under no_sync() that the others synchronised: it reduced gradients less often",
        evidence=(f"forwards under no_sync: {own} on {named([suspect.rank])}, {theirs} on {named([suspect.witness.rank])}",),
    )


def fewer_no_sync(suspect: Suspect) -> Explanation | None:
    """It synchronised the gradients of a forward that the others ran under no_sync()."""
    if suspect.own is None or suspect.own.call.bucket is None or suspect.theirs.call.bucket is not None:
        return None
    mine, others = forwards_so_far(suspect.trace, suspect.own), forwards_so_far(suspect.witness, suspect.theirs)
    newest = max(mine, default=0)
    if mine.get(newest) is not False or others.get(newest) is not True:
        return None
    return Explanation(
        Cause.RANK_ONLY_COLLECTIVE,
        Certainty.PROVEN,
        f"synchronised the gradients of forward {newest}, which the others ran under no_sync()",
        evidence=(f"forward {newest}: sync on {named([suspect.rank])}, no_sync on {named([suspect.witness.rank])}",),
        advice=SAME_BACKWARDS,
    )
