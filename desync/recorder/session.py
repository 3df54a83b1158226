"""The recorder's state in one process, and the rule that nothing in it may reach the job.

A session exists from the moment at which a process is known to be a rank.  Every entry from the job's code into the recorder
goes through :func:`quiet` (or an equal ``try``): what fails is said once in the journal's notes, and a part that keeps failing
is switched off.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
from _thread import get_ident
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from desync.journal.writer import JournalWriter
from desync.recorder import claims
from desync.recorder.sites import of_others

P = ParamSpec("P")
R = TypeVar("R")

MAX_FAILURES = 20
"""After so many failures a part of the recorder is switched off (the hook tries every operation anew)."""
MAX_GENERATIONS = 100
"""Programs that one process may become one after the other (``os.exec``), each with a journal of its own."""


class Session:
    """A rank's open journal and what belongs to the whole process."""

    def __init__(self, writer: JournalWriter) -> None:
        self.writer = writer
        self.backward_site = 0
        """Where the user's code last called backward: the call site of what the autograd threads launch."""
        self.exit_code: int | None = None
        self.exit_site = 0
        """Where ``sys.exit`` was called last."""
        self.exit_progress: tuple[int, ...] | None = None
        """How far the rank had come then."""
        self.used_gloo = False
        self._failures: dict[str, int] = {}
        self._threads: dict[int, int] = {}

    def thread(self) -> int:
        """The operating system's number of this thread (what py-spy and /proc call it)."""
        ident = get_ident()
        native = self._threads.get(ident)
        if native is None:
            # A thread's number can come back for another thread; a wrong one here only misnames a thread in the report.
            native = self._threads[ident] = threading.get_native_id()
        return native

    def failed(self, part: str, error: Exception) -> None:
        """Say, once for each part, that it failed.

        Raises ``error`` again if it is not the recorder's: a signal handler of the job's may raise anywhere, also in here.
        """
        if of_others(error.__traceback__):
            raise error
        count = self._failures[part] = self._failures.get(part, 0) + 1
        if count == 1:
            self._note(f"{part} failed on this rank: {described(error)}")
        elif count == MAX_FAILURES:
            self._note(f"{part} failed {count} times on this rank; what it should have recorded is missing")

    def _note(self, text: str) -> None:
        try:
            self.writer.note(text)
        except Exception:  # noqa: BLE001 - then there is still the file beside the journal
            complain(text)

    def off(self, part: str) -> bool:
        """Whether a part has failed too often."""
        return self._failures.get(part, 0) >= MAX_FAILURES


current: Session | None = None
"""The session of this process; None where it is no rank (yet), and in forked children."""


def quiet(part: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Make a function of the recorder safe to call from the job: it returns None instead of raising."""

    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def safe(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                if current is not None and current._failures and current.off(part):
                    return None
                return function(*args, **kwargs)
            except Exception as error:
                if current is not None:
                    current.failed(part, error)
                elif of_others(error.__traceback__):
                    raise
                else:
                    complain(f"{part} failed: {described(error)}")
                return None

        return safe

    return decorate


def begin(rank: int | None, world_size: int | None) -> Session | None:
    """The session of this process, opened now if it has none; None if the journal cannot be had (said in a note file)."""
    global current
    if current is None:
        run_directory = os.environ.get("DESYNC_RUN_DIR")
        if not run_directory:
            return None
        writer = _open(run_directory)
        if writer is None:
            return None
        current = Session(writer)
        _watch_forks()
    current.writer.identify(rank, world_size)
    return current


_forks_watched = False


def _watch_forks() -> None:
    global _forks_watched
    if not _forks_watched:
        _forks_watched = True
        os.register_at_fork(after_in_child=_forget)


forgetting: list[Callable[[], object]] = []
"""What other parts have to undo in a forked child."""


def _forget() -> None:
    """A forked child (a loader's worker) is no rank: it shares the mapping and must never write into it."""
    global current
    parents, current = current, None
    if parents is None:
        return
    parents.writer.detach()
    while forgetting:
        with contextlib.suppress(Exception):
            forgetting.pop()()


_refused = False


def _open(run_directory: str) -> JournalWriter | None:
    global _refused
    if _refused:
        return None
    attempt = attempt_number()
    try:
        folder = os.path.join(run_directory, "journals")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return _new_journal(folder, attempt)
    except Exception as error:  # noqa: BLE001 - a job without a journal is still a job
        _refused = True
        complain(f"no journal: {described(error)}")
        return None


def _new_journal(folder: str, attempt: int) -> JournalWriter:
    """A journal under a name that no other has: a process that replaces itself (``os.exec``) keeps its number."""
    node = socket.gethostname()
    for generation in range(MAX_GENERATIONS):
        number = f"{os.getpid()}{f'{generation:02}' if generation else ''}"
        name = f"a{attempt}.{node}.{number}.journal"
        try:
            path = os.path.join(folder, name)
            return JournalWriter(path, attempt=attempt, ancestor=claims.ancestor(), **_sizes())
        except FileExistsError:
            continue
    raise FileExistsError(f"{MAX_GENERATIONS} journals of process {os.getpid()} are in {folder}")


def _sizes() -> dict[str, int]:
    """Sizes of the journal; the variables are for tests and for very long windows."""
    sizes = {}
    for key, variable in (("slots", "DESYNC_JOURNAL_SLOTS"), ("heap_bytes", "DESYNC_JOURNAL_HEAP_BYTES")):
        if value := os.environ.get(variable):
            sizes[key] = int(value)
    return sizes


def attempt_number() -> int:
    """Restart count of torchelastic; 0 elsewhere."""
    value = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(value) if value.isdigit() else 0


def described(error: Exception) -> str:
    """An exception's type and message; the message may be the user's own code."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - whatever its __str__ does
        return type(error).__name__


def complain(text: str) -> None:
    """Say where there is no journal to say it in: beside the journals, else on standard error."""
    rank = os.environ.get("RANK", "?")
    line = f"rank {rank} (pid {os.getpid()}): {text}\n"
    with contextlib.suppress(Exception):
        path = os.path.join(os.environ["DESYNC_RUN_DIR"], "journals", f"{os.getpid()}.note")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(line)
        return
    with contextlib.suppress(Exception):
        sys.stderr.write(f"desync: {line}")
