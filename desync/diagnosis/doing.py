"""What a rank does outside any collective, in words: its process's state, its stack, and what it waits for there."""

from __future__ import annotations

from desync.diagnosis.progress import pending_fetch
from desync.diagnosis.suspect import Suspect
from desync.diagnosis.words import named, place, raised, seconds
from desync.model import Activity, Evidence, Motion, Stack, Trace

_STATES = {
    "stopped": "its process is stopped: somebody sent SIGSTOP, or a debugger holds it",
    "tracing-stop": "its process is stopped by a debugger or a tracer",
}


def is_stopped(activity: Activity | None) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    return activity is not None and activity.process_state in ("stopped", "tracing-stop")


NAPS = 3
"""So many wakes, and one in so many seconds at least, are no pause but a loop that looks for something."""
NAP_S = 5


def naps(activity: Activity, now: int | None) -> bool:
    """Whether a process that stands still sleeps, wakes for a moment, and sleeps again."""
    if activity.waits_for != "sleeps" or activity.wakes is None or activity.since is None or now is None:
        return False
    return activity.wakes >= max(NAPS, (now - activity.since) / 1e9 / NAP_S)


def doing(suspect: Suspect) -> str:
    """What a rank that does not come does instead, as far as can be seen."""
    activity = suspect.activity
    if activity is not None and is_stopped(activity):
        return _STATES[activity.process_state or ""]
    fetch = pending_fetch(suspect.trace)
    stack = main_stack(suspect.evidence, suspect.rank)
    parts = [f"waits for batch {fetch.value} of its data loader"] if fetch is not None else []
    if stack is not None:
        parts.append(where(stack))
    if activity is not None and activity.motion is Motion.FROZEN and activity.waits_for:
        again = naps(activity, suspect.evidence.observed_at)
        parts.append("sleeps, wakes and sleeps again" if again else activity.waits_for)
    if parts:
        return "; ".join(parts)
    last = suspect.at.last
    return f"after its last {last.kind.value}" if last is not None else "nothing more is known"


def main_stack(evidence: Evidence, rank: int) -> Stack | None:
    """The frames of a rank's main thread, if they were taken."""
    threads = (stack for stacks in evidence.stacks if stacks.rank == rank for stack in stacks.threads)
    return next((stack for stack in threads if stack.thread.startswith("Main") and stack.frames), None)


def where(stack: Stack) -> str:
    """In put, train.py:31: the innermost frame of the user's, or the innermost at all."""
    frame = next((frame for frame in stack.frames if frame.is_users), stack.frames[0])
    return f"in {frame.function}, {frame.file.rpartition('/')[2]}:{frame.line}"


def after_thread_failure(trace: Trace) -> str:
    """What ended a thread of a rank last, to stand behind a sentence; empty if nothing did."""
    mark = trace.thread_failures[-1] if trace.thread_failures else None
    if mark is None or mark.failure is None:
        return ""
    return f" after its thread {mark.failure.thread} raised {raised(mark.failure)} at {place(mark.site)}"


def motion(suspect: Suspect) -> str:
    """How its process moved while it was waited for."""
    activity, now = suspect.activity, suspect.evidence.observed_at
    if activity is None:
        return f"{named([suspect.rank])}: not sampled"
    return moved(activity, now)


def moved(activity: Activity, now: int | None) -> str:
    """How a process moved, as evidence."""
    parts = [activity.motion.value]
    if activity.process_state:
        parts.append(activity.process_state)
    if activity.cpu_s is not None:
        parts.append(f"{activity.cpu_s:.1f} s of CPU")
    if activity.since is not None and now is not None:
        parts.append(f"for {seconds(now - activity.since)}")
    return f"process of {named([activity.rank])}: {', '.join(parts)}"
