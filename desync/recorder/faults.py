"""The stacks at a kill or a crash, which faulthandler writes into a file of the rank's.

Handlers of signals are the job's before they are ours: what it has installed, before or since, stays in force, in forked
children too.  So nothing is ever uninstalled in a child, where that would bring back what was there before the recorder came;
the descriptor into which faulthandler writes is pointed elsewhere instead.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import resource
import signal
import socket

from desync.recorder import session
from desync.recorder.session import Session, quiet

HIGHEST = 1024
"""Descriptors from here on, where a process may have them at all, make select(2) of the job's fail."""
SPARE = 32

_FATAL = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
"""What faulthandler takes over when it is enabled."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class FaultFile:
    """A descriptor that keeps its number while the file behind it changes."""

    def __init__(self, path: str) -> None:
        self.handle = _high(os.open(path, _FLAGS, 0o600))
        self._file = _identity(self.handle)

    def point_to(self, path: str) -> bool:
        """Let it lead to another file; False if the job has closed it and uses its number for something else."""
        if _identity(self.handle) not in (self._file, None):
            return False
        other = os.open(path, _FLAGS, 0o600)
        os.dup2(other, self.handle, inheritable=False)
        os.close(other)
        self._file = _identity(self.handle)
        return True

    def silence(self) -> None:
        """In a forked child: its stacks are not the rank's (a loader's workers are ended by SIGTERM)."""
        try:
            self.point_to(os.devnull)
        except OSError:
            os.close(self.handle)  # where there is no such device; what is written then is lost as well


def _high(handle: int) -> int:
    """The descriptor under a high number.

    A job may close all descriptors that it does not know.  The number of this one would then be the next file's, into which
    the stacks would be written.  A high number makes that rarer, no more: a job with a thousand open files can still meet it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = HIGHEST if limit == resource.RLIM_INFINITY else min(limit, HIGHEST)
    try:
        moved = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, max(limit - SPARE, 3))
    except OSError:
        return handle
    os.close(handle)
    return moved


def _identity(handle: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(handle)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_file: FaultFile | None = None


@quiet("keeping the stacks at a kill")
def keep_stacks(owner: Session) -> None:
    """Let faulthandler write this rank's stacks into a file of its own."""
    global _file
    folder = os.path.join(os.environ["DESYNC_RUN_DIR"], "stacks")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"a{session.attempt_number()}.{socket.gethostname()}.{os.getpid()}.fault")
    # Of a forked child that has become a rank, faulthandler has been in place since its parent was one.
    if _file is None or not _file.point_to(path):
        _file = FaultFile(path)
        _install(owner, _file.handle)
    session.forgetting.append(_file.silence)


def _install(owner: Session, handle: int) -> None:
    if faulthandler.is_enabled():
        owner.writer.note("faulthandler was enabled before: stacks of a crash go where the job wants them")
    elif any(map(_has_a_use, _FATAL)):
        # A runtime that repairs faults of memory (a JVM, a trap handler) does not survive another handler before its own.
        owner.writer.note("the job handles fatal signals itself: no stacks are kept at a crash")
    else:
        faulthandler.enable(handle, all_threads=True)
    if _has_a_use(signal.SIGTERM):
        # A rank that goes on after SIGTERM would leave a stack of where it was then; one that ignores it wants its children to.
        owner.writer.note("the job handles or ignores SIGTERM itself: no stacks are kept when it comes")
    else:
        faulthandler.register(signal.SIGTERM, handle, all_threads=True, chain=True)


def _has_a_use(number: signal.Signals) -> bool:
    """Whether the job handles or ignores a signal, in Python or outside of it.

    A handler of which Python does not know may be one of faulthandler's own, that the job has registered: to register again
    would replace it.
    """
    if signal.getsignal(number) is not signal.SIG_DFL:
        return True
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
