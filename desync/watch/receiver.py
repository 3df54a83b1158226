"""The job as the receiver of signals that came to its watcher."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection

import psutil

from desync.watch import processes
from desync.watch.signals import ENDING, Taken


class Receiver:
    """Gives the job each signal once, and to the processes that would have got it without a watcher."""

    def __init__(self, job: subprocess.Popen[bytes], shares_group: bool) -> None:
        self._job = job
        self.shares_group = shares_group
        """Whether the job is in the watcher's process group: then it has a terminal's signals from the terminal itself."""
        self._untold: set[psutil.Process] = set()
        self._last_words = signal.SIGTERM

    def give(self, taken: Taken, number: signal.Signals | None = None) -> str | None:
        """Hand the signal (or ``number`` in its place) on to a job that was not collected; returns why it could not be."""
        number = taken.number if number is None else number
        try:
            if taken.from_process:
                self._give_launcher(number)
            elif not self.shares_group:
                self._give_group(number)
        except ProcessLookupError:
            return None
        except OSError as error:
            return f"{number.name} could not be handed on to the job ({error.strerror})"
        return None

    def _give_launcher(self, number: signal.Signals) -> None:
        if number in ENDING:
            self._untold.update(processes.group_of(self._job.pid))
            self._last_words = number
        os.kill(self._job.pid, number)

    def _give_group(self, number: signal.Signals) -> None:
        os.killpg(self._job.pid, number)
        if number in ENDING:
            # A job that was put into the background and read the terminal stands still, and would never notice.
            os.killpg(self._job.pid, signal.SIGCONT)

    def left(self) -> list[psutil.Process]:
        """Processes of the launcher's that still run although the launcher was asked to end."""
        return [process for process in self._untold if processes.runs(process)]

    def give_those_left(self, but: Collection[int]) -> None:
        """Ask them too, in the launcher's place, which ended without doing it; ``but``: pids that are seen to otherwise."""
        for process in self.left():
            if process.pid not in but:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(self._last_words)
