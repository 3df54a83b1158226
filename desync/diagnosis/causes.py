"""Why a rank did not do what the others did: one small function for each cause, asked in the order of :data:`CAUSES`.

Each gets a :class:`Suspect` and returns an :class:`Explanation` or None; none changes anything.  The order goes from what
the rank itself says (it raised, it was killed) over what its marks show to what only the order of calls suggests.
"""

from __future__ import annotations

from collections.abc import Callable

from desync.diagnosis.advice import AFTER_ITS_THREAD, BEFORE_THE_START, BUFFERS, STOPPED_ADVICE
from desync.diagnosis.compare import differences
from desync.diagnosis.doing import after_thread_failure, doing, is_stopped, main_stack, motion, naps
from desync.diagnosis.endings import Manner
from desync.diagnosis.ends import explain_end
from desync.diagnosis.memory import caught_out_of_memory
from desync.diagnosis.order import another_turn_of_one_line, order_mismatch
from desync.diagnosis.suspect import Explanation, Suspect, same_call, went_past
from desync.diagnosis.turns import fewer_no_sync, left_loop_early, more_no_sync, once_more, skipped_backward, uneven_inputs
from desync.diagnosis.words import apart, called, counted, named, place
from desync.model import Cause, Certainty, Mark, Motion, Operation

SYNC_BUFFERS = frozenset({"_sync_buffers", "_sync_module_buffers"})
"""Functions of torch/nn/parallel/distributed.py in which a forward broadcasts a module's buffers."""

Explain = Callable[[Suspect], Explanation | None]


def own_end(suspect: Suspect) -> Explanation | None:
    """Its end explains itself: an exception, memory, a signal."""
    return explain_end(suspect.ending) if suspect.ending is not None else None


def unused_parameters(suspect: Suspect) -> Explanation | None:
    """DDP waits for gradients that its loss never touched: its backward ended without the bucket."""
    if not _backward_without_bucket(suspect):
        return None
    bucket = suspect.theirs.call.bucket
    return Explanation(
        Cause.UNUSED_PARAMETERS,
        Certainty.PROVEN if suspect.own is not None or suspect.gone else Certainty.LIKELY,
        f"finished its backward {suspect.at.backwards} without launching {bucket}, of which a parameter got no gradient",
        evidence=(
            f"{named([suspect.rank])}: backward {suspect.at.backwards} has ended, {bucket} was never launched",
            f"{named([suspect.witness.rank])}: in backward {suspect.witness_at.backwards}, has launched it",
        ),
        time=suspect.last_step[1].left if suspect.last_step is not None else None,
    )


def _backward_without_bucket(suspect: Suspect) -> bool:
    bucket, step = suspect.theirs.call.bucket, suspect.last_step
    if bucket is None or step is None or step[0].value != "sync":
        return False
    if suspect.own is not None and suspect.own.call.bucket is not None:
        return False
    return suspect.at.backwards == suspect.witness_at.backwards and not _launched_in(step[1], bucket, suspect)


def _launched_in(backward: Mark, bucket: str, suspect: Suspect) -> bool:
    """Whether a backward did launch a bucket: then it met that of an earlier backward of the others, and another is missing."""
    first = max(0, backward.after - suspect.trace.dropped)
    table = suspect.trace.operations
    return any(table.calls[call].bucket == bucket for call in table.call[first:])


def group_creation(suspect: Suspect) -> Explanation | None:
    """It made another group than the others there, or none at all."""
    if suspect.parting.board.kind != "group_creation" or suspect.theirs.call.op != "new_group":
        return None
    if suspect.own is None and not suspect.gone:
        return None
    theirs = f"new_group({_members(suspect.theirs)}) at {place(suspect.theirs.call.site)}"
    own = "called nothing"
    if suspect.own is not None:
        own = f"called {suspect.own.call.op}({_members(suspect.own)}) at {place(suspect.own.call.site)}"
    return Explanation(
        Cause.GROUP_CREATION,
        Certainty.PROVEN,
        f"{own} where the others called {theirs}",
        evidence=(f"{named([suspect.witness.rank])} called {theirs}",),
    )


def _members(operation: Operation) -> str:
    return "of all ranks" if operation.call.members is None else str(list(operation.call.members))


def skipped_collective(suspect: Suspect) -> Explanation | None:
    """It left out what the others did there, and is at something that they do as well."""
    no_sync = more_no_sync(suspect)
    if no_sync is not None:
        return no_sync
    if suspect.own is None or same_call(suspect):
        return None
    own, theirs = suspect.own.call.site, suspect.theirs.call.site
    known = own is not None and own in suspect.sites(suspect.witness.rank)
    if own is None or theirs is None or not (known or went_past(suspect)):
        return None
    in_the_dark = suspect.unmarked and suspect.theirs.call.bucket is not None
    here, there = apart(own, theirs), apart(theirs, own)
    also = f"{named([suspect.witness.rank])} also comes to {here}; {named([suspect.rank])} came there too early"
    return Explanation(
        Cause.SKIPPED_COLLECTIVE,
        Certainty.PROVEN if known and not in_the_dark else Certainty.LIKELY,
        f"left out {called(suspect.theirs)} of {there} and went on to {suspect.own.call.op} at {here}",
        evidence=(
            also if known else f"{here} is further down than {there}; {_OR_NOBODY_ELSE}",
            *([_OR_ORDER] if suspect.own.pending else []),
            *([_OR_NO_GRADIENT] if in_the_dark else []),
        ),
    )


_OR_ORDER = "it is held there: whether it would have made the other call afterwards, in another order, cannot be seen"
_OR_NOBODY_ELSE = "nobody else has been there before: whether the others would have come there as well cannot be seen"
_OR_NO_GRADIENT = "nothing tells of its backward: whether that ended without a gradient for the bucket cannot be seen"
_OR_LATER = "nothing tells how far the ranks had come: whether the others would have come there later cannot be seen"


def rank_only_collective(suspect: Suspect) -> Explanation | None:
    """It makes a call that the others do not make."""
    if suspect.own is None or same_call(suspect):
        return None
    own, theirs, waiting = suspect.own.call, suspect.theirs.call, named(suspect.waiting)
    in_the_dark = suspect.unmarked and own.site not in suspect.sites(suspect.witness.rank)
    return Explanation(
        Cause.RANK_ONLY_COLLECTIVE,
        Certainty.LIKELY if in_the_dark else Certainty.PROVEN,
        f"called {called(suspect.own)} at {apart(own.site, theirs.site)}, which the others did not call",
        evidence=(
            f"{waiting} called {called(suspect.theirs)} at {apart(theirs.site, own.site)} instead",
            *([_OR_LATER] if in_the_dark else []),
        ),
        advice=BUFFERS if _syncs_buffers(suspect) else None,
    )


def _syncs_buffers(suspect: Suspect) -> bool:
    """Whether its stack shows that a forward of DDP makes the call."""
    stack = main_stack(suspect.evidence, suspect.rank)
    return stack is not None and any(frame.function.rpartition(".")[2] in SYNC_BUFFERS for frame in stack.frames)


def argument_mismatch(suspect: Suspect) -> Explanation | None:
    """It made the same call with other arguments."""
    if suspect.own is None or suspect.own.call.op != suspect.theirs.call.op:
        return None
    fields = differences({suspect.rank: suspect.own.call, suspect.witness.rank: suspect.theirs.call})
    if not fields:
        return None
    words = [f"{field.field} {field.by_rank[suspect.rank]} (others: {field.by_rank[suspect.witness.rank]})" for field in fields]
    return Explanation(
        Cause.ARGUMENT_MISMATCH,
        Certainty.PROVEN,
        f"called {suspect.own.call.op} #{suspect.own.seq} with {', '.join(words)}",
        evidence=tuple(
            f"{field.field}: {field.by_rank[suspect.rank]} on {named([suspect.rank])}, "
            f"{field.by_rank[suspect.witness.rank]} on {named([suspect.witness.rank])}"
            for field in fields
        ),
    )


def same_call_other_arguments(suspect: Suspect) -> Explanation | None:
    """The same call of the same line (or bucket) with other arguments: that is no other call."""
    return argument_mismatch(suspect) if same_call(suspect) else None


def exited_early(suspect: Suspect) -> Explanation | None:
    """It ended of its own will while the others go on."""
    ending = suspect.ending
    if ending is None and suspect.own is None and suspect.trace.finished is not None:
        return _program_over(suspect, suspect.trace.finished)
    if ending is None or ending.manner is not Manner.EXITED:
        return None
    status = f" with status {ending.code}" if ending.code is not None else ""
    where = f" at {place(ending.site)}" if ending.site is not None else ""
    return Explanation(
        Cause.EXITED_EARLY,
        ending.certainty,
        f"exited{status}{where} while the others went on",
        evidence=(f"{named([suspect.rank])}: exit recorded after {counted(suspect.at.steps, 'step')}",),
        time=ending.time,
    )


def _program_over(suspect: Suspect, finished: int) -> Explanation | None:
    """Its main thread has come to its end, though its process has not; unless another thread does the work."""
    newest = suspect.trace.operations.row(suspect.rank, -1) if len(suspect.trace.operations) else None
    if newest is not None and newest.entered is not None and newest.entered > finished:
        return None
    return Explanation(
        Cause.EXITED_EARLY,
        Certainty.LIKELY,
        "came to the end of its program while the others went on, and its process waits for its threads",
        evidence=(f"{named([suspect.rank])}: its main thread ended after {counted(suspect.at.steps, 'step')}",),
        time=finished,
    )


def slow_rank(suspect: Suspect) -> Explanation | None:
    """It is late and still moves."""
    activity = suspect.activity
    if not suspect.can_come or activity is None or activity.motion is not Motion.MOVING or not waited_long(suspect):
        return None
    return Explanation(
        Cause.SLOW_RANK,
        Certainty.LIKELY,
        f"is late but still at work ({doing(suspect)})",
        evidence=(motion(suspect),),
    )


def stalled_rank(suspect: Suspect) -> Explanation | None:
    """It is alive, in no collective, and frozen."""
    if not suspect.can_come or not is_frozen(suspect):
        return None
    what = f"is stuck outside any collective ({doing(suspect)}){after_thread_failure(suspect.trace)}"
    if suspect.theirs.call.op == "init_process_group":
        what = f"has not reached init_process_group ({doing(suspect)})"
        return Explanation(Cause.RENDEZVOUS, Certainty.LIKELY, what, evidence=(motion(suspect),), advice=BEFORE_THE_START)
    advice = AFTER_ITS_THREAD if suspect.trace.thread_failures else None
    advice = STOPPED_ADVICE if is_stopped(suspect.activity) else advice
    return Explanation(Cause.STALLED_RANK, Certainty.LIKELY, what, evidence=(motion(suspect),), advice=advice)


PATIENCE_WITH_NAPS = 6
"""So many times as long: whoever sleeps and looks again waits for something that may well come (a file, another program)."""


def is_frozen(suspect: Suspect) -> bool:
    """Whether it has stood still for as long as the user grants; who looks for something again and again gets longer."""
    activity, now = suspect.activity, suspect.evidence.observed_at
    if activity is None or activity.motion is not Motion.FROZEN or activity.since is None or now is None:
        return False
    patience = PATIENCE_WITH_NAPS if naps(activity, now) else 1
    return now - activity.since >= suspect.evidence.hang_after_ns * patience


def waited_long(suspect: Suspect) -> bool:
    """Whether the others have waited for as long as the user grants."""
    came, now = suspect.parting.time, suspect.evidence.observed_at
    return came is not None and now is not None and now - came >= suspect.evidence.hang_after_ns


CAUSES: tuple[Explain, ...] = (
    own_end,
    caught_out_of_memory,
    group_creation,
    unused_parameters,
    uneven_inputs,
    order_mismatch,
    another_turn_of_one_line,
    same_call_other_arguments,
    skipped_backward,
    once_more,
    left_loop_early,
    fewer_no_sync,
    skipped_collective,
    rank_only_collective,
    argument_mismatch,
    exited_early,
    stalled_rank,
    slow_rank,
)

_SIDE = (own_end, caught_out_of_memory, unused_parameters, uneven_inputs, left_loop_early)


def without_gradients(suspect: Suspect) -> Explanation | None:
    """Its marks show that its backward is over, though it never reduced the bucket in which the others are."""
    return unused_parameters(suspect) or more_no_sync(suspect)


def side_causes(suspect: Suspect) -> bool:
    """Whether the suspect's own marks, end or earlier calls show that it is the one at fault, without any majority."""
    return any(cause(suspect) is not None for cause in _SIDE)
