"""Causes that a rank's own end shows, whoever waited for it: it raised, ran out of memory, or was killed."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace

from desync.diagnosis.advice import HELD_BACK, MEMORY_ADVICE, WORKER_KILLED
from desync.diagnosis.endings import Ending, Manner
from desync.diagnosis.structure import is_refusal
from desync.diagnosis.suspect import Explanation
from desync.diagnosis.words import named, place, raised
from desync.model import Cause, Certainty, Failure

NATIVE = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals by which native code ends its own process; nobody sends them."""

NATIVE_ADVICE = (
    "An error in native code ended it (a backend that met what it did not expect, a failed assertion): read its last words "
    "in the job's output and its stack below."
)

_WORKER_KILLED = re.compile(r"DataLoader worker .{1,60} is killed by signal: Killed")
_UNUSED = "Expected to have finished reduction in the prior iteration"


def out_of_memory(ending: Ending) -> Explanation | None:
    """It ran out of memory, and raised."""
    failure = ending.error
    if failure is None or not failure.out_of_memory:
        return None
    return _because_it_raised(Cause.OUT_OF_MEMORY, ending, f"ran out of memory: {raised(failure)}")


def unused_parameters(ending: Ending) -> Explanation | None:
    """DDP itself says, at the next forward, that some parameters got no gradient."""
    failure = ending.error
    if failure is None or _UNUSED not in failure.message:
        return None
    names = unused_names(failure)
    return _because_it_raised(
        Cause.UNUSED_PARAMETERS, ending, f"left parameters without gradient{': ' + names if names else ''}"
    )


def unused_names(failure: Failure) -> str:
    """The parameters that DDP's error names; empty if it gives only their numbers."""
    for found in re.finditer(r"did not receive grad for rank \d+: ([^\n]{1,400})", failure.message):
        if not found.group(1)[:1].isdigit():
            return found.group(1).strip()
    return ""


def structure_mismatch(ending: Ending) -> Explanation | None:
    """DDP found that the ranks built different models; it raises on ranks that are right as well as on those that are not."""
    failure = ending.error
    if failure is None or not is_refusal(failure.message):
        return None
    explanation = _because_it_raised(Cause.STRUCTURE_MISMATCH, ending, "stopped because the ranks built different models")
    return replace(explanation, evidence=(f"{named([ending.rank])}: {raised(failure)}", *explanation.evidence), blames=False)


def exception(ending: Ending) -> Explanation | None:
    """It raised, and ended or sits in a ``finally`` block."""
    failure = ending.error
    if failure is None:
        return None
    still = " and is still handling it" if ending.manner is Manner.HOLDING else ""
    explanation = _because_it_raised(Cause.EXCEPTION, ending, f"raised {raised(failure)}{still}")
    if _WORKER_KILLED.search(failure.message) is not None:
        return replace(explanation, advice=WORKER_KILLED)
    return replace(explanation, advice=HELD_BACK) if still else explanation


def _because_it_raised(cause: Cause, ending: Ending, what: str) -> Explanation:
    where = (f"{named([ending.rank])} raised at {place(ending.failure.site)}",) if ending.failure is not None else ()
    return Explanation(cause, Certainty.PROVEN, what, evidence=where, time=ending.time)


def killed(ending: Ending) -> Explanation | None:
    """A signal ended it, or it vanished without a word."""
    if ending.manner is not Manner.KILLED:
        return None
    by = f"was ended by {signal_name(ending.signal)}" if ending.signal else "vanished without raising or exiting"
    evidence = [f"{named([ending.rank])}: no exception and no exit was recorded, and its process is gone"]
    evidence += ending.printed
    kills = ending.kernel_kills
    if kills is not None:
        where = f"in the cgroup of {named(kills.ranks)}" if kills.in_cgroup else "somewhere on this machine"
        counted = "a process" if kills.count == 1 else f"{kills.count} processes"
        evidence.append(f"the kernel ended {counted} {where} for want of memory since the job began (oom_kill)")
        by += ", while the kernel was ending processes of its cgroup for want of memory" if kills.in_cgroup else ""
    return Explanation(
        Cause.KILLED,
        Certainty.PROVEN,
        by,
        evidence=tuple(evidence),
        advice=MEMORY_ADVICE if kills is not None and kills.in_cgroup else NATIVE_ADVICE if ending.signal in NATIVE else None,
        time=ending.time,
    )


def signal_name(number: int) -> str:
    """SIGKILL for 9; "signal 99" where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


ENDS: tuple[Callable[[Ending], Explanation | None], ...] = (
    out_of_memory,
    unused_parameters,
    structure_mismatch,
    exception,
    killed,
)


def explain_end(ending: Ending) -> Explanation | None:
    """The first of these causes that fits; None for a plain exit and for a victim of others."""
    if ending.victim:
        return None
    return next((explanation for cause in ENDS if (explanation := cause(ending)) is not None), None)
