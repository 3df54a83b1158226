"""How ranks ended, and which of these ends only follow from another's.

When one rank of a job dies, its peers get errors of communication, and the launcher kills the rest: those are victims whatever
they print.  The first failure that a launcher reports is evidence, not truth; what counts is what the ranks recorded.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, replace

from desync.model import CallSite, Certainty, Evidence, Failure, KernelKills, Mark, MarkKind, Trace


class Manner(enum.Enum):
    """How a rank ended."""

    RAISED = "raised"
    """An exception that nobody caught."""
    HOLDING = "holding"
    """It raised and has not ended: a ``finally`` or ``except`` block is at work."""
    EXITED = "exited"
    """It left of its own will, without an exception that is known."""
    KILLED = "killed"
    """A signal, or it vanished without a word."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one rank."""

    rank: int
    manner: Manner
    time: int | None
    failure: Mark | None = None
    signal: int | None = None
    code: int | None = None
    site: CallSite | None = None
    """Where it asked for its own end (``sys.exit``, ``os._exit``), if it did."""
    was_done: bool = False
    """Its program was over, or it had destroyed its groups."""
    kernel_kills: KernelKills | None = None
    """What the kernel ended for want of memory meanwhile, where that may explain this end."""
    printed: tuple[str, ...] = ()
    """What the job printed before native code ended this rank; only where no other rank can have said it."""
    victim: bool = False
    """It is the kind of end that another rank's end or absence causes: an error of communication, the launcher's signal."""

    @property
    def certainty(self) -> Certainty:
        """That it ended of its own will: a status without the call that asked for it may be that of a lost exception."""
        return Certainty.PROVEN if self.code in (0, None) or self.site is not None else Certainty.LIKELY

    @property
    def error(self) -> Failure | None:
        """The exception."""
        return self.failure.failure if self.failure is not None else None


INTERRUPTED = "KeyboardInterrupt"
"""What Ctrl-C raises in every rank, or in those that were quick enough: somebody gave up waiting."""


def endings(evidence: Evidence) -> dict[int, Ending]:
    """The end of every rank that has ended or raised."""
    found = {}
    for trace in evidence.traces:
        ending = _ending(trace)
        if ending is not None:
            found[trace.rank] = _with_kills(ending, evidence)
    return _with_last_words(_without_cleared_up(found), evidence)


def _without_cleared_up(found: dict[int, Ending]) -> dict[int, Ending]:
    """Ranks that vanished after another had failed are the launcher's doing, until their status is known and says otherwise."""
    faults = (end for end in found.values() if _is_fault(end) and not end.victim)
    known = (end for end in faults if end.manner is not Manner.KILLED or end.signal is not None)
    began = min((end.time for end in known if end.time is not None), default=None)

    def cleared_up(end: Ending) -> bool:
        vanished = end.manner is Manner.KILLED and end.signal is None and end.kernel_kills is None
        return vanished and began is not None and end.time is not None and end.time >= began

    return {rank: replace(end, victim=True) if cleared_up(end) else end for rank, end in found.items()}


def _with_last_words(found: dict[int, Ending], evidence: Evidence) -> dict[int, Ending]:
    aborted = [rank for rank, ending in found.items() if ending.signal == signal.SIGABRT]
    if len(aborted) != 1 or not evidence.last_words:
        return found
    printed = tuple(f"the job printed: {line}" for line in evidence.last_words)
    return {rank: replace(ending, printed=printed) if rank in aborted else ending for rank, ending in found.items()}


def _with_kills(ending: Ending, evidence: Evidence) -> Ending:
    if ending.manner is not Manner.KILLED or ending.signal not in (signal.SIGKILL, None):
        return ending
    kills = next((kills for kills in evidence.kernel_kills if ending.rank in kills.ranks), None)
    return replace(ending, kernel_kills=kills)


def _ending(trace: Trace) -> Ending | None:
    uncaught = _last_failure(trace, uncaught=True)
    if uncaught is not None and uncaught.failure is not None:
        victim = is_communication_error(uncaught.failure) or uncaught.failure.type == INTERRUPTED
        return Ending(trace.rank, Manner.RAISED, uncaught.time, uncaught, code=_code(trace), victim=victim)
    held = _last_failure(trace, uncaught=False)
    if trace.exit is None:
        if held is not None and held.failure is not None and _still_held(trace, held):
            return Ending(trace.rank, Manner.HOLDING, held.time, held, victim=is_communication_error(held.failure))
        return None
    return _gone(trace, held)


def _gone(trace: Trace, held: Mark | None) -> Ending:
    assert trace.exit is not None  # noqa: S101 - the caller has looked
    code, number = trace.exit.code, trace.exit.signal
    if trace.exit.announced:
        if held is not None and held.failure is not None and code not in (0, None):
            # An exception turned into an exit status by the program, mp.spawn for one.
            return Ending(trace.rank, Manner.RAISED, held.time, held, code=code, victim=is_communication_error(held.failure))
        return Ending(trace.rank, Manner.EXITED, trace.exit.time, code=code, signal=number, site=_exit_site(trace))
    if held is not None and held.failure is not None and number == signal.SIGTERM and _still_held(trace, held):
        # The launcher ended it while it sat in its ``finally`` block.
        return Ending(trace.rank, Manner.HOLDING, held.time, held, victim=is_communication_error(held.failure))
    if number is None and code is not None:
        return Ending(trace.rank, Manner.EXITED, trace.exit.time, code=code)
    victim = number == signal.SIGTERM
    return Ending(
        trace.rank, Manner.KILLED, trace.exit.time, signal=number, code=code, was_done=_was_done(trace), victim=victim
    )


def _was_done(trace: Trace) -> bool:
    newest = trace.operations.row(trace.rank, -1) if len(trace.operations) else None
    return trace.finished is not None or (newest is not None and newest.call.op == "destroy_process_group")


def _exit_site(trace: Trace) -> CallSite | None:
    return next((mark.site for mark in reversed(trace.marks) if mark.kind is MarkKind.EXIT), None)


def _code(trace: Trace) -> int | None:
    return trace.exit.code if trace.exit is not None else None


def _last_failure(trace: Trace, uncaught: bool) -> Mark | None:
    marks = [mark for mark in trace.marks if mark.kind is MarkKind.EXCEPTION and not trace.outlives(mark)]
    return next((mark for mark in reversed(marks) if mark.failure is not None and mark.failure.uncaught is uncaught), None)


def _still_held(trace: Trace, held: Mark) -> bool:
    """Whether the rank has made no progress since: an exception that was dealt with is no end."""
    progress = (MarkKind.FETCH, MarkKind.FORWARD, MarkKind.BACKWARD, MarkKind.STEP, MarkKind.EXHAUSTED)
    return not any(mark.kind in progress and mark.time > held.time for mark in trace.marks)


def first(found: dict[int, Ending]) -> Ending | None:
    """The first end that is nobody's consequence: an exception, a kill, or an exit with a status."""
    faults = [ending for ending in found.values() if not ending.victim and _is_fault(ending)]
    return min(faults, key=lambda ending: (ending.time or 0, ending.rank), default=None)


def _is_fault(ending: Ending) -> bool:
    if ending.manner is Manner.EXITED:
        return ending.code not in (0, None)
    return True


def is_communication_error(failure: Failure) -> bool:
    """Whether an exception says that a peer or the network failed, or that a time-out passed: others were at fault.

    The words are those of gloo, NCCL and c10d as torch 2.4 to 2.14 raise them.
    """
    text = failure.message
    if failure.type.rpartition(".")[2] in _COMMUNICATION_TYPES:
        return "unhandled cuda error" not in text.lower() and not any(words in text for words in _MISUSE)
    return any(words in text for words in _COMMUNICATION_WORDS)


_MISUSE = ("ncclInvalidUsage", "ncclInvalidArgument")
"""NCCL refuses what its caller asks for (two ranks on one GPU): that is the program's doing."""
_COMMUNICATION_TYPES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
_COMMUNICATION_WORDS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "gloo/transport",
    "connectFullMesh failed",
    "Application timeout caused pair closure",
    "Timed out waiting",
    "timed out after",
    "timeout waiting",
    "Watchdog caught collective operation timeout",
    "NCCL communicator was aborted",
    "remote process exited or there was a network error",
    "failed to pass monitoredBarrier",
    "Socket Timeout",
    "wait timeout after",
    "Socket closed",
)
