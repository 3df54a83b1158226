"""One run of ``desync watch``, from the launch line to the exit status."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from desync.errors import LaunchError, RunDirectoryError
from desync.evidence.run_directory import RunRecord, save
from desync.watch import processes, run_directory
from desync.watch.environment import DebugLevels, job_environment
from desync.watch.launch import find_program, in_foreground, launch
from desync.watch.observer import Observer
from desync.watch.output import LogTail, Output
from desync.watch.receiver import Receiver
from desync.watch.reporter import Reporter
from desync.watch.signals import ENDING, SignalQueue, Taken, stop
from desync.watch.status_line import Voice
from desync.watch.watchdog import Diagnose, Watchdog

OUTPUT_FILE = "output.log"
TICK_S = 0.1
EXIT_KILLED_HUNG = 3
ENDING_PATIENCE = 5
"""Ranks that have all said that they end are granted this many times ``hang_after``: on a busy machine an exit takes long."""
GRACE_S = 5.0
"""Between asking a hung job's processes to end and making them."""
LATE_OUTPUT_S = 2.0
RANKS_END_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What ``desync watch`` was asked for."""

    command: tuple[str, ...]
    run_dir: Path | None = None
    hang_after_s: float = 10.0
    kill_on_hang: bool = False
    levels: DebugLevels = field(default_factory=DebugLevels)
    annotate: bool = False
    """Whether findings are also written as GitHub's workflow commands."""


def watch(options: Options, diagnose: Diagnose) -> int:
    """Run the command and watch it; returns the exit status for ``desync watch``.

    Raises UsageError, LaunchError or RunDirectoryError before the command is started; after that its status is the answer.
    """
    find_program(options.command[0], os.environ.get("PATH"))
    directory = run_directory.create(options.command, options.run_dir, datetime.now().astimezone())
    with SignalQueue() as signals:
        return Session(options, directory, signals, diagnose).run()


class Session:
    """The running watch."""

    def __init__(self, options: Options, directory: Path, signals: SignalQueue, diagnose: Diagnose) -> None:
        self.options = options
        self.directory = directory
        self.signals = signals
        self.voice = Voice(status_line=sys.stderr.isatty())
        hang_after_ns = int(options.hang_after_s * 1e9)
        self.record = RunRecord(options.command, time.time_ns(), socket.gethostname(), hang_after_ns)
        self._save()
        shares_group = in_foreground()
        self.output, self.job = self._start(own_group=not shares_group)
        self.receiver = Receiver(self.job, shares_group)
        self.observer = Observer(directory, self.record.job, hang_after_ns)
        self.tail = LogTail(directory / OUTPUT_FILE, self.observer.hear)
        reporter = Reporter(directory, self.voice, annotate=options.annotate, kill=options.kill_on_hang)
        self.watchdog = Watchdog(self.observer, diagnose, reporter)
        self._killed_hung = False
        self._asked_to_end = False

    def _start(self, *, own_group: bool) -> tuple[Output, subprocess.Popen[bytes]]:
        environment = job_environment(os.environ, self.directory, self.options.levels)
        if sys.stdout.isatty():
            # As on a terminal, where Python does not hold lines back.
            environment.setdefault("PYTHONUNBUFFERED", "1")
        try:
            output = Output(self.directory / OUTPUT_FILE, self.voice.status_line)
        except OSError as error:
            raise RunDirectoryError(
                f"{self.directory / OUTPUT_FILE} cannot be written ({error.strerror})", "choose another place with --run-dir"
            ) from error
        try:
            return output, launch(self.options.command, environment, output, own_group=own_group)
        except LaunchError:
            output.release()
            output.finish(LATE_OUTPUT_S)
            raise
        finally:
            output.release()

    # --- while the job runs

    def run(self) -> int:
        """Watch until the job has ended; returns the exit status."""
        main = threading.get_ident()
        # Any ended child wakes the loop; an ended rank, which is no child, is made to look like one.
        self.observer.wake_on_exit(lambda: signal.pthread_kill(main, signal.SIGCHLD))
        try:
            while self.job.poll() is None:
                self._once()
            return self._finish()
        finally:
            self.observer.close()

    def _once(self) -> None:
        taken = self.signals.wait(TICK_S)
        if taken is not None:
            self._hand_on(taken)
        self.tail.follow()
        try:
            self.watchdog.tick()
            self._keep_stacks()
            if self.voice.is_due():
                self.voice.status(self.observer.pulses(), self.observer.folder.newest_operation(), self.tail.ends_line)
        except Exception as error:  # noqa: BLE001 - a defect of desync must not cost the user the job's output and status
            self.watchdog.add_note(f"the watch failed for a moment: {type(error).__name__}: {error}")
        if self.options.kill_on_hang and not self._killed_hung and self._hangs():
            self._kill()

    def _keep_stacks(self) -> None:
        """What `desync report` has to go on if the watcher does not live to write the last report."""
        if self.watchdog.reported_stacks != self.record.stacks:
            self.record = replace(self.record, stacks=self.watchdog.reported_stacks)
            self._save()

    def _hangs(self) -> bool:
        """Whether to end the job: it hangs, or it has stood still for ``hang_after`` since a rank's end or an unclear fault."""
        if self.watchdog.is_hang:
            return True
        since, limit = self.watchdog.standing_since, self.options.hang_after_s
        if since is None or time.time_ns() - since < limit * 1e9 or not self.observer.live_pids():
            return False
        # Ranks that fail one after the other are about to end the job themselves, with its own status.
        return self.watchdog.silence_s >= limit * (ENDING_PATIENCE if self.observer.all_are_ending() else 1)

    def _kill(self) -> None:
        self._killed_hung = True
        self.voice.say("ending the hung job (--on-hang kill)")
        self.watchdog.told_to_end("desync ended the hung job (--on-hang kill): SIGTERM and SIGKILL are its own")
        self.watchdog.take_missing_stacks()
        self._end_tree()

    def _end_tree(self) -> None:
        # The number of a launcher that was collected may belong to a stranger by now.
        launcher = (self.job.pid,) if self.job.returncode is None else ()
        processes.end(processes.tree((*launcher, *self.observer.live_pids().values())), GRACE_S)

    def _hand_on(self, taken: Taken) -> None:
        """Give the job a signal that came to the watcher."""
        self._heed(taken)
        if problem := self.receiver.give(taken):
            self.watchdog.add_note(problem)
        if taken.number is signal.SIGTSTP:
            stop(taken)
            self.receiver.give(taken, signal.SIGCONT)

    def _heed(self, taken: Taken) -> None:
        """Note it if someone asks the job to end; who ends a hung job wants to know where its ranks were."""
        if taken.number not in ENDING or self._asked_to_end:
            return
        self._asked_to_end = True
        name = taken.number.name
        if self.receiver.shares_group and not taken.from_process:
            self.watchdog.told_to_end(f"the terminal sent {name} to the job", taken.since)
        else:
            runs = self.job.returncode is None
            done = "and handed it on to the job" if runs else "when the job's launcher had ended"
            self.watchdog.told_to_end(f"the watcher was sent {name} {done}")
        try:
            self.watchdog.take_urgent_stacks()
        except Exception as error:  # noqa: BLE001 - whatever becomes of the stacks, the job has to get its signal
            self.watchdog.add_note(f"no stacks at {name}: {type(error).__name__}: {error}")

    # --- the end

    def _finish(self) -> int:
        code = self.job.returncode
        try:
            self._conclude(code)
        except Exception as error:  # noqa: BLE001 - the job's own status is the answer, whatever happens to the report
            self.voice.say(f"the report could not be written ({type(error).__name__}: {error}); please report this defect")
            if os.environ.get("DESYNC_DEBUG") == "1":
                traceback.print_exc()
        if self._killed_hung:
            return EXIT_KILLED_HUNG
        return code if code >= 0 else 128 - code

    def _conclude(self, code: int) -> None:
        self.observer.refresh()
        # A terminal's Ctrl-C may have ended the launcher before the loop came to it.
        while (taken := self.signals.wait(0)) is not None:
            self._heed(taken)
        self._await_ranks()
        if not self.output.finish(LATE_OUTPUT_S):
            self.watchdog.add_note("processes of the job still held its output open when its launcher had ended")
        self.tail.follow_to_the_end()
        self.voice.clear()
        self.observer.job = replace(self.observer.job, ended=time.time_ns(), exit_code=code)
        report = self.watchdog.finish()
        self.record = replace(
            self.record,
            ended=self.observer.job.ended,
            exit_code=code,
            told_to_end=self.observer.job.told_to_end,
            exits=self.observer.exits(),
            stacks=self.watchdog.reported_stacks,
            notes=self.watchdog.notes,
        )
        self._save()
        self.watchdog.reporter.close(report)

    def _await_ranks(self) -> None:
        """Ranks end a moment after their launcher, or outlive it: then end them only if someone asked for the job's end."""
        deadline = time.monotonic() + (GRACE_S if self._asked_to_end else RANKS_END_S)
        while (self.observer.live_pids() or self.receiver.left()) and time.monotonic() < deadline:
            if (taken := self.signals.wait(TICK_S)) is not None:
                self._heed(taken)
        left = self.observer.live_pids()
        self.receiver.give_those_left(but=left.values())
        if left and self._asked_to_end:
            self._end_tree()
        elif left:
            who = ", ".join(f"{rank} (pid {pid})" for rank, pid in sorted(left.items()))
            self.watchdog.add_note(f"ranks that still ran when their launcher had ended: {who}")

    def _save(self) -> None:
        try:
            save(self.record, self.directory)
        except OSError as error:
            self.voice.say(f"run.json cannot be written: {error.strerror}")
