"""Signals to the watcher, taken one after another by its loop instead of interrupting it."""

from __future__ import annotations

import signal
import time
from types import TracebackType

HANDED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP}
)
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""Those with which someone asks the job to end."""


class SignalQueue:
    """While entered, signals to this process wait until :meth:`wait` takes them; threads started meanwhile get none."""

    def __enter__(self) -> SignalQueue:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, {*HANDED_ON, signal.SIGCHLD})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # What is still pending was meant for a job that has ended; it must not end the watcher's own last steps.
        while signal.sigtimedwait({*HANDED_ON, signal.SIGCHLD}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def wait(self, limit_s: float) -> signal.Signals | None:
        """Sleep until a signal comes, a child ends or the time is over; returns a signal that has to be handed on."""
        deadline = time.monotonic() + limit_s
        taken = signal.sigtimedwait({*HANDED_ON, signal.SIGCHLD}, max(0.0, deadline - time.monotonic()))
        if taken is None or taken.si_signo == signal.SIGCHLD:
            return None
        return signal.Signals(taken.si_signo)
