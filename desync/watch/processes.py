"""The processes of a job: when a rank's process ends and how, and ending all of them."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterable

import psutil

from desync.evidence.liveness import process_start, stat_fields
from desync.model import Exit

_START_FIELD = 19
_EXIT_CODE_FIELD = 49
"""Of /proc/pid/stat, counted from the state (proc(5): field 52)."""


class ExitWatch:
    """Waits in a thread of its own for the end of processes that are no children of ours.

    Their parent takes the exit status within moments; waiting on a pidfd wakes this thread before that, in most cases, and
    the status is read from the zombie.  ``on_exit`` is called from the thread.
    """

    def __init__(self, on_exit: Callable[[], None] = lambda: None) -> None:
        self.on_exit = on_exit
        self._exits: dict[tuple[int, int], Exit] = {}
        self._known: set[tuple[int, int]] = set()
        self._descriptors: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="desync exit watch", daemon=True)
        self._thread.start()

    def add(self, pid: int, started: int) -> None:
        """Watch a process; ``started`` in clock ticks since boot tells it apart from a later one with its number."""
        process = (pid, started)
        if process in self._known:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._ended(process, None)
        except (OSError, AttributeError):  # some builds of Python (conda's) lack the function
            self._follow(process)
        else:
            self._wait_for(process, descriptor)
        self._known.add(process)

    def _wait_for(self, process: tuple[int, int], descriptor: int) -> None:
        pid, started = process
        now = stat_fields(pid)
        if now is None or (started and int(now[_START_FIELD]) != started):
            os.close(descriptor)
            self._ended(process, None)
            return
        with self._lock:
            self._descriptors[descriptor] = process
            self._poll.register(descriptor, select.POLLIN)
        os.write(self._wake_write, b".")

    def exits(self) -> dict[tuple[int, int], Exit]:
        """Processes that have ended, by pid and start, as they were added; the code is None where it could not be had."""
        with self._lock:
            return dict(self._exits)

    def close(self) -> None:
        """Stop waiting."""
        self._closing = True
        os.write(self._wake_write, b".")
        self._thread.join()
        for descriptor in (*self._descriptors, self._wake_read, self._wake_write):
            os.close(descriptor)

    def _run(self) -> None:
        while not self._closing:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                    continue
                with self._lock:
                    process = self._descriptors.pop(descriptor)
                    self._poll.unregister(descriptor)
                code = zombie_code(*process)
                os.close(descriptor)
                self._ended(process, code)

    def _ended(self, process: tuple[int, int], code: int | None) -> None:
        with self._lock:
            self._exits[process] = Exit(time=time.time_ns(), code=code)
        self.on_exit()

    def _follow(self, process: tuple[int, int]) -> None:
        """Where there is no pidfd (or none is left): look ten times a second."""
        pid, started = process

        def look() -> None:
            while not self._closing:
                now = process_start(pid)
                if now is None or (started and now != started):
                    self._ended(process, zombie_code(pid, started) if now is None else None)
                    return
                time.sleep(0.1)

        threading.Thread(target=look, daemon=True).start()


def zombie_code(pid: int, started: int = 0) -> int | None:
    """Exit status (negative: signal) of a process that its parent has not collected yet; None if it cannot be seen.

    ``started`` (clock ticks since boot, 0: unknown) tells it from a later process with its number.
    """
    fields = stat_fields(pid)
    if fields is None or fields[0] != b"Z" or len(fields) <= _EXIT_CODE_FIELD:
        return None
    if started and int(fields[_START_FIELD]) != started:
        return None
    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE_FIELD]))


def tree(roots: Iterable[int]) -> list[psutil.Process]:
    """The processes ``roots`` that live, and all their descendants, whatever session they are in."""
    found: dict[int, psutil.Process] = {}
    for pid in roots:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
    return list(found.values())


def group_of(pid: int) -> list[psutil.Process]:
    """Descendants of a child of ours, not collected yet, that are in its process group: a signal to the group reaches them."""
    found = []
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        group = os.getpgid(pid)
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) == group:
                    found.append(process)
    return found


def end(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """Ask the processes to end (SIGTERM), and after ``grace_s`` seconds make them (SIGKILL)."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    alive = _still_alive(processes, grace_s)
    # What they started meanwhile goes with them.
    for process in {*alive, *tree(process.pid for process in alive)}:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _still_alive(alive, 1.0)


def _still_alive(processes: Iterable[psutil.Process], limit_s: float) -> list[psutil.Process]:
    """Those that have not ended within the limit; psutil's own waiting would take our children's exit status."""
    deadline = time.monotonic() + limit_s
    alive = [process for process in processes if runs(process)]
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)
        alive = [process for process in alive if runs(process)]
    return alive


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; a zombie has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
