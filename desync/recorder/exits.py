"""The end of a rank: exit marks, and gloo's race for the GIL at exit."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from desync.journal.layout import RecordType
from desync.recorder import exceptions, faults, session
from desync.recorder.session import Session, quiet
from desync.recorder.sites import walk

_PR_SET_PTRACER = 0x59616D61  # prctl(2), Yama
GIL_PAUSE_S = 0.1
"""Gloo's worker thread frees the last Work and needs the GIL for it; where the interpreter is finalising by then the process
aborts (up to a third of plain jobs).  This long without the GIL let every one of 30 jobs end well."""


CALLS_IN_FINALLY = 4
"""So many calls are made on the way out: to meet the others, to destroy groups."""
_STATUS_BITS = 0xFF
"""What is left of a status when the process has ended; a journal's negative one would be a signal."""

_installed = False


def install(owner: Session) -> None:
    """Watch every way in which this process can end."""
    global _installed
    if not _installed:
        _installed = True
        exceptions.install()
        atexit.register(_at_exit)
        _wrap_exit_functions()
        _watch_main_thread()
    faults.keep_stacks(owner)
    _allow_ptrace()


def _at_exit() -> None:
    owner = session.current
    if owner is None:
        return
    _forget_caught_exit(owner)
    _say_exit(owner, owner.exit_code, owner.exit_site)
    if owner.used_gloo:
        time.sleep(GIL_PAUSE_S)


@quiet("recording the exit")
def _say_exit(owner: Session, code: int | None, site: int) -> None:
    # A user's sys.excepthook that does not chain hides the exception from ours; the interpreter keeps it here.
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException) and code is None:
        exceptions.record(owner, error, uncaught=True)
        code = exceptions.exit_status(error)
    writer = owner.writer
    writer.mark(RecordType.EXIT, value=None if code is None or code < 0 else code, site=site, thread=owner.thread())
    writer.exiting(code)


@quiet("recording the exit")
def _forget_caught_exit(owner: Session) -> None:
    """A rank that took further batches or steps, or made more calls, after ``sys.exit`` has caught it."""
    if not owner.exit_progress:
        return
    (calls, *steps), (calls_now, *steps_now) = owner.exit_progress, owner.writer.progress
    if steps_now != steps or calls_now - calls > CALLS_IN_FINALLY:
        owner.exit_code, owner.exit_site = None, 0


@quiet("watching the main thread")
def _watch_main_thread() -> None:
    """Say when the main thread's program is over.  Python then waits for other threads before anything of ``atexit`` runs."""
    # Its own callback waits for its workers; callbacks run from the last to the first, and ours must not come after it.
    import concurrent.futures.thread

    assert concurrent.futures.thread  # noqa: S101 - it is imported for what it registers
    threading._register_atexit(_main_is_over)  # type: ignore[attr-defined]  # private, in every Python from 3.9 on


@quiet("recording the end of the main thread")
def _main_is_over() -> None:
    if session.current is not None:
        session.current.writer.main_over()


def _wrap_exit_functions() -> None:
    plain_exit, hard_exit = sys.exit, os._exit

    @functools.wraps(plain_exit)
    def exit_(status: Any = None, /) -> NoReturn:
        _remember(status, sys._getframe(1))
        plain_exit(status)

    @functools.wraps(hard_exit)
    def exit_now(status: int) -> NoReturn:
        owner = session.current
        if owner is not None and isinstance(status, int):  # else it raises TypeError and nothing ends
            _say_exit(owner, status & _STATUS_BITS, _site(owner, sys._getframe(1)) or 0)
        hard_exit(status)

    exit_now.__module__ = "os"  # where pickle finds it; the original's is posix
    sys.exit = exit_
    os._exit = exit_now


@quiet("recording the exit status")
def _remember(status: Any, caller: FrameType) -> None:
    owner = session.current
    if owner is None or threading.current_thread() is not threading.main_thread():
        return  # in another thread it ends only that thread
    owner.exit_code = 0 if status is None else status & _STATUS_BITS if isinstance(status, int) else 1
    owner.exit_site = _site(owner, caller) or 0
    owner.exit_progress = owner.writer.progress
    # mp.spawn and many programs turn an exception into an exit status; it is still being handled here.
    exceptions.held_back(owner)


@quiet("recording where a rank ends itself")
def _site(owner: Session, caller: FrameType) -> int:
    """Number of the call site of a call that ends this process; 0 where nobody asked for it."""
    if caller.f_globals.get("__name__", "").startswith("multiprocessing."):
        return 0  # how every process of its ends; a forked one still has the line that started it on its stack
    frames, _ = walk(caller)
    return owner.writer.intern("site", frames, key=repr(frames)) if frames else 0


@quiet("allowing ptrace")
def _allow_ptrace() -> None:
    """Let the watcher and its children (py-spy) look at this process where the kernel restricts that to ancestors."""
    watcher = os.environ.get("DESYNC_WATCHER_PID", "")
    if watcher.isdigit():
        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(watcher)), 0, 0, 0)
