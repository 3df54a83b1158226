"""All that can be seen of a running job from outside, gathered into evidence."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import psutil

from desync.evidence.journals import JournalFolder, RankProcess
from desync.evidence.run_directory import JOURNALS, STACKS
from desync.journal.reader import Pulse
from desync.model import Activity, Evidence, Exit, Job, Motion, RankStacks, Trace
from desync.stacks import faults
from desync.stacks.pyspy import TakenStacks, take
from desync.watch.activity import ActivityTracker, ProcessSampler
from desync.watch.exits import ExitCodes
from desync.watch.kernel_kills import KernelKillCounters
from desync.watch.last_words import LastWords
from desync.watch.processes import ExitWatch
from desync.watch.states import StandingRanks
from desync.watch.threads import waits_for

SAMPLE_EVERY_S = 0.5
STACK_EVERY_S = 2.0
STACK_LIMIT_S = 1.0
MEMORY_EVERY_S = 2.0

TakeStacks = Callable[[Mapping[int, int], float, bool], TakenStacks]


class Observer:
    """Follows the ranks of one run: journals, process ends, activity of those that are awaited, stacks."""

    def __init__(self, run_directory: Path, job: Job, hang_after_ns: int, take_stacks: TakeStacks = take) -> None:
        self.job = job
        self.folder = JournalFolder(run_directory / JOURNALS)
        self.codes = ExitCodes()
        self._words = LastWords()
        self.stacks: dict[int, RankStacks] = {}
        self._taken_by: dict[int, int] = {}
        """The newest of each rank of the present attempt."""
        self._fault_folder = run_directory / STACKS
        self._hang_after_ns = hang_after_ns
        self._take = take_stacks
        self._exit_watch = ExitWatch()
        self._node = socket.gethostname()
        self._awaited: dict[int, _Awaited] = {}
        self._stack_notes: tuple[str, ...] = ()
        self._memory: dict[int, int] = {}
        self._next_memory = 0.0
        self._standing = StandingRanks()
        self._next_standing = 0.0
        self._kernel_kills = KernelKillCounters()

    def hear(self, data: bytes) -> None:
        """Take the next piece of what the job prints."""
        self.codes.feed(data)
        self._words.feed(data)

    def wake_on_exit(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` (from another thread) as soon as a rank's process ends."""
        self._exit_watch.on_exit = wake

    def close(self) -> None:
        """Let go of files and of the thread."""
        self._exit_watch.close()
        self.folder.close()

    def refresh(self) -> None:
        """Find new journals and watch their processes."""
        self.folder.refresh()
        for rank, process in self._local().items():
            self._exit_watch.add(process.pid, process.started)
            self._kernel_kills.add(rank, process.pid)

    def _local(self, attempt: int | None = None) -> dict[int, RankProcess]:
        return {rank: p for rank, p in self.folder.ranks(attempt).items() if p.node == self._node}

    @property
    def attempt(self) -> int | None:
        """The newest attempt; None before any rank is known."""
        return self.folder.attempts[-1] if self.folder.attempts else None

    def begin_attempt(self) -> None:
        """Forget what belongs to the attempt before."""
        self.stacks.clear()
        self._awaited.clear()
        self._stack_notes = ()
        self._memory.clear()
        self._words.forget()

    def pulses(self) -> dict[int, Pulse]:
        """A cheap look at every rank."""
        return self.folder.pulses()

    def live_pids(self) -> dict[int, int]:
        """Pids by rank, of the ranks on this machine that have not ended."""
        ended = self._exit_watch.exits()
        return {rank: p.pid for rank, p in self._local().items() if (p.pid, p.started) not in ended}

    def ended_ranks(self) -> dict[int, bool]:
        """Ranks whose process has ended, and whether that looks like a fault: not announced, or with a status other than 0."""
        exits, announced = self.exits(), self.folder.announced()
        return {
            rank: not announced.get(rank, False) or exits[process.pid].code not in (0, None)
            for rank, process in self._local().items()
            if process.pid in exits
        }

    def all_are_ending(self) -> bool:
        """Whether every rank whose process still runs has said that it ends."""
        announced = self.folder.announced()
        return all(announced.get(rank, False) for rank in self.live_pids())

    def exits(self, attempt: int | None = None) -> dict[int, Exit]:
        """Process ends by pid, with the best known status; of a number that was used again, what the attempt's process did."""
        local = self._local(attempt)
        spawned = {process.pid: rank for rank, process in local.items()}
        ended = self._exit_watch.exits()
        exits = {pid: end for (pid, _), end in ended.items() if pid not in spawned}
        exits |= {p.pid: ended[p.pid, p.started] for p in local.values() if (p.pid, p.started) in ended}
        for pid, end in exits.items():
            if end.code is None:
                exits[pid] = replace(end, code=self.codes.best(pid, spawned.get(pid)))
        return exits

    # --- what is awaited

    def watch_closely(self, ranks: Iterable[int], lingering: Iterable[int] = ()) -> None:
        """Sample the activity of these ranks, and of no others, from now on.

        Of those that linger no stack is taken: most are gone in a moment, and py-spy would only stop them on their way.
        """
        pids = self.live_pids()
        bare = set(lingering)
        wanted = {rank: pids[rank] for rank in (*ranks, *bare) if rank in pids}
        known = self._awaited
        self._awaited = {
            rank: known[rank] if rank in known and known[rank].sampler.pid == pid else _Awaited(rank, pid, rank in bare)
            for rank, pid in wanted.items()
        }

    def sample(self) -> None:
        """Look at the awaited ranks, if it is time to."""
        now = time.monotonic()
        if now >= self._next_memory:
            self._next_memory = now + MEMORY_EVERY_S
            self._sample_memory()
        if now >= self._next_standing:
            self._next_standing = now + SAMPLE_EVERY_S
            self._standing.look(self.live_pids(), time.time_ns())
        due = {rank: one for rank, one in self._awaited.items() if now >= one.next_sample}
        if not due:
            return
        for_stacks = {rank: one.sampler.pid for rank, one in due.items() if now >= one.next_stack}
        if for_stacks:
            self.take_stacks(for_stacks, STACK_LIMIT_S, native=False)
        pulses = self.folder.pulses()
        for rank, one in due.items():
            pulse = pulses.get(rank)
            stack = self.stacks[rank].threads if rank in for_stacks and rank in self.stacks else None
            one.tracker.add(one.sampler.sample(time.time_ns(), pulse.records if pulse else 0, stack))
            one.next_sample = now + SAMPLE_EVERY_S
            if rank in for_stacks:
                one.next_stack = now + STACK_EVERY_S

    def _sample_memory(self) -> None:
        for rank, pid in self.live_pids().items():
            with contextlib.suppress(psutil.Error):
                self._memory[rank] = int(psutil.Process(pid).memory_info().rss)

    def activities(self) -> dict[int, Activity]:
        """What the samples say of the awaited ranks, and of those that stand still wherever they are."""
        awaited = {rank: self._with_reason(one.tracker.activity, one.sampler.pid) for rank, one in self._awaited.items()}
        return {**self._standing.activities(), **awaited}

    def _with_reason(self, activity: Activity, pid: int) -> Activity:
        """What a rank that stands still waits for, as its newest stack and the kernel tell."""
        if activity.motion is not Motion.FROZEN:
            return activity
        threads = self.stacks[activity.rank].threads if activity.rank in self.stacks else ()
        frames = next((stack.frames for stack in threads if stack.thread.startswith("Main")), ())
        # What the user's code was called by says nothing of what it waits for.
        inside = tuple(takewhile(lambda frame: not frame.is_users, frames))
        return replace(activity, waits_for=waits_for(pid, activity.process_state, inside))

    # --- stacks

    def take_stacks(self, pids: Mapping[int, int], limit_s: float, native: bool) -> None:
        """Take stacks of these ranks now; those that cannot be had keep the ones they had."""
        taken = self._take(pids, limit_s, native)
        self._taken_by.update(dict.fromkeys((stack.rank for stack in taken.stacks), time.time_ns()))
        self.stacks.update({stack.rank: stack for stack in taken.stacks})
        self._stack_notes = taken.notes

    def take_missing_stacks(self, limit_s: float) -> None:
        """Python frames of live ranks that have none yet, such as those that came into sight later than the others."""
        missing = {rank: pid for rank, pid in self.live_pids().items() if rank not in self.stacks}
        if missing:
            notes = self._stack_notes
            self.take_stacks(missing, limit_s, native=False)
            self._stack_notes = tuple(dict.fromkeys((*notes, *self._stack_notes)))

    @property
    def has_stacks(self) -> bool:
        """Whether stacks are kept, or the reasons why some could not be had."""
        return bool(self.stacks or self._stack_notes)

    def drop_stacks(self) -> None:
        """Forget stacks that say nothing any more because their ranks went on."""
        self.stacks.clear()
        self._stack_notes = ()

    def without_stacks(self, evidence: Evidence) -> Evidence:
        """The evidence of a job that was well: its ranks were looked at for nothing, and nobody misses a stack."""
        return replace(evidence, stacks=(), notes=tuple(note for note in evidence.notes if note not in self._stack_notes))

    # --- evidence

    def evidence(self, *, ended: bool = False, attempt: int | None = None) -> Evidence:
        """All that is known now of the newest (or the given) attempt."""
        wanted = self.attempt if attempt is None else attempt
        notes, left = self._stack_notes, faults.FaultStacks()
        if ended or self._exit_watch.exits():
            left = self._left_behind(wanted)
            notes += tuple(f"rank {rank} wrote: {words}" for rank, words in sorted(left.fatal.items()))
        exits = self.exits(wanted)
        found = self.folder.evidence(
            self.job,
            activities=self.activities(),
            exits=exits,
            observed_at=time.time_ns(),
            ended=ended,
            hang_after_ns=self._hang_after_ns,
            attempt=wanted,
            notes=notes,
        )
        found = replace(found, traces=self._without_promises(found.traces))
        newest = {trace.rank: trace.operations.entered[-1] for trace in found.traces if len(trace.operations)}
        # Where a rank was before it went on is not where it died.
        here = [rank for rank in sorted(self.stacks) if newest.get(rank, 0) <= self._taken_by.get(rank, 0)]
        taken: tuple[RankStacks, ...] = tuple(self.stacks[rank] for rank in here)
        known = {stack.rank for stack in taken} - _went_on(taken, found.traces)
        # A rank that went on after a signal was not ended by it.
        useless = known | _went_on(left.stacks, found.traces)
        found = replace(found, stacks=(*taken, *(stack for stack in left.stacks if stack.rank not in useless)))
        kills = self._kernel_kills.kills() if exits else ()
        return replace(found, memory=dict(self._memory), kernel_kills=kills, last_words=self._words.lines)

    def _without_promises(self, traces: Iterable[Trace]) -> tuple[Trace, ...]:
        """Without the status that a process which still runs has said to end with: it may catch its ``sys.exit``."""
        live = {(self._node, pid) for pid in self.live_pids().values()}
        return tuple(
            replace(trace, exit=replace(trace.exit, code=None))
            if trace.exit is not None and trace.exit.code is not None and (trace.node, trace.pid) in live
            else trace
            for trace in traces
        )

    def _left_behind(self, attempt: int | None) -> faults.FaultStacks:
        ranks = {(process.node, process.pid): rank for rank, process in self._local(attempt).items()}
        return faults.read_folder(self._fault_folder, attempt or 0, ranks)


def _went_on(stacks: Iterable[RankStacks], traces: Iterable[Trace]) -> set[int]:
    """Ranks that entered an operation after their stack was taken: it tells where they were, and not where they died."""
    entered = {trace.rank: trace.operations.entered[-1] for trace in traces if len(trace.operations)}
    return {stack.rank for stack in stacks if stack.time is not None and entered.get(stack.rank, 0) > stack.time}


class _Awaited:
    """One rank that others wait for."""

    def __init__(self, rank: int, pid: int, bare: bool) -> None:
        self.sampler = ProcessSampler(pid)
        self.tracker = ActivityTracker(rank)
        self.next_sample = 0.0
        self.next_stack = float("inf") if bare else 0.0
