"""Signals to the watcher, taken one after another by its loop instead of interrupting it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from types import TracebackType

HANDED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP}
)
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Those with which someone asks the job to end."""

BLOCKED_BEFORE = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""What was blocked when desync was started, and is to be blocked for the job, as it would be without desync."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A signal that came to the watcher."""

    number: signal.Signals
    from_process: bool
    """Sent by a process, to the watcher; else it is a terminal's, which sends it to a whole process group."""
    since: int
    """It came no earlier than this (epoch ns)."""


class SignalQueue:
    """While entered, signals to this process wait until :meth:`wait` takes them; threads started meanwhile get none.

    Signals that were ignored before (``nohup``) stay ignored, here and by the job.
    """

    def __enter__(self) -> SignalQueue:
        heard = {number for number in HANDED_ON if signal.getsignal(number) is not signal.SIG_IGN}
        self._waited_for = {*heard, signal.SIGCHLD}
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._waited_for)
        self._looked = time.time_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # What is still pending was meant for a job that has ended; it must not end the watcher's own last steps.
        while signal.sigtimedwait(self._waited_for, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def wait(self, limit_s: float) -> Taken | None:
        """Sleep until a signal comes, a child ends or the time is over; returns a signal that has to be handed on."""
        deadline = time.monotonic() + limit_s
        taken = signal.sigtimedwait(self._waited_for, max(0.0, deadline - time.monotonic()))
        since, self._looked = self._looked, time.time_ns()
        if taken is None or taken.si_signo == signal.SIGCHLD:
            return None
        return Taken(signal.Signals(taken.si_signo), taken.si_code <= 0, since)


def stop(taken: Taken) -> None:
    """Stop this process, for SIGTSTP; returns when it goes on.

    After a terminal's the kernel decides: it stops nobody whom no shell could continue.
    """
    if taken.from_process:
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
