"""Evidence of a job that runs now and was started without desync: its stacks twice, and what its processes do in between.

The ranks are stopped only for as long as py-spy needs for each of its two looks (some hundredths of a second); everything else
is read from /proc.  Measured in between is whether a rank's main thread ran at all: one that did not, and is seen in the same
call before and after, has not left that call; seeing it there twice would not show that.
"""

from __future__ import annotations

import contextlib
import socket
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from desync.diagnosis.words import place
from desync.errors import RunDirectoryError
from desync.evidence.liveness import process_start
from desync.evidence.pyspy_dump import BACKWARD
from desync.evidence.run_directory import RunRecord, read
from desync.evidence.standing import FORWARD, WAIT, Standing, is_loader_worker, is_spawned, rank_and_world, standing
from desync.model import (
    Activity,
    Claim,
    ClaimKind,
    Evidence,
    Exit,
    Frame,
    Group,
    Job,
    Kind,
    Motion,
    OperationTable,
    Trace,
)
from desync.stacks.pyspy import TakenStacks, take
from desync.watch.activity import CPU_SHARE, ActivityTracker, ProcessSampler
from desync.watch.observer import Observer
from desync.watch.ranks import LivingJob, Spawned
from desync.watch.threads import STOPPED, Clock, has_process_group, main_clock, share, uses_gpu, waits_for

SECONDS = 2.0
STACKS_S = 3.0
"""Limit of one look at all stacks."""
SETTLE_S = 0.5
REST_S = 0.05
"""What was stopped for its stack runs a little to get back to where it waited; it is given so long, and must rest so long."""
EVERY_S = 0.25
SPINS = 0.5
"""A thread that waits for a GPU keeps a core busy: a larger share of the time than this."""
DEFAULT, OTHER = "0", "another group"
PASSES = (FORWARD, BACKWARD)
"""Calls that compute as well as communicate."""

UNSEEN = (
    "nothing was recorded: a stack shows the call that a rank is in, and not its number, its tensors or the members of its "
    "group (`desync watch` records them)"
)

TakeStacks = Callable[[Mapping[int, int]], TakenStacks]


def take_stacks(pids: Mapping[int, int]) -> TakenStacks:
    """One look at the stacks of these processes, with the variables that matter."""
    return take(pids, STACKS_S, native=False, variables=True)


def peek(pids: Sequence[int]) -> dict[int, Spawned]:
    """Which of these processes a program has spawned as ranks, with what their stacks tell of their number."""
    taken = take_stacks({pid: pid for pid in pids})
    told: dict[int, Spawned] = {}
    certain = False
    for stacks in taken.stacks:
        if is_loader_worker(stacks):
            continue
        variables = taken.variables.get(stacks.rank, ())
        told[stacks.rank] = Spawned(*rank_and_world(variables))
        certain = certain or is_spawned(stacks) or has_process_group(stacks.rank)
    # Other programs have copies of themselves as well: somebody must be where only ranks are.
    return told if certain else {}


def look_at_run(run_directory: Path, seconds: float) -> Evidence | None:
    """Evidence of a job under ``desync watch``, from its journals and its processes; None if no rank of it runs here."""
    try:
        record = read(run_directory)
    except RunDirectoryError:
        record = RunRecord((), None, socket.gethostname(), 10_000_000_000)
    observer = Observer(run_directory, record.job, record.hang_after_ns)
    try:
        observer.refresh()
        living = observer.live_pids() if observer.attempt is not None else {}
        if not living:
            return None
        observer.watch_closely(living)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            observer.sample()
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))
        observer.refresh()
        if not (left := observer.live_pids()):
            return None  # the job was ended while it was looked at: what its watcher would have seen was not seen here
        observer.take_stacks(left, STACKS_S, native=False)
        return observer.evidence()
    finally:
        observer.close()


def look(job: LivingJob, seconds: float, take_stacks: TakeStacks = take_stacks) -> Evidence | None:
    """What two looks at a job, so many seconds apart, show of it; None if it ended meanwhile.

    The ranks go on; nothing of them is changed.
    """
    ranks = [_Rank(rank, pid) for rank, pid in job.pids.items()]
    first = take_stacks(job.pids)
    _settle(ranks)
    begun = time.time_ns()
    for one in ranks:
        one.begin(begun)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(EVERY_S, left))
        for one in ranks:
            one.sample(time.time_ns())
    ended = time.time_ns()
    for one in ranks:
        one.end()
    second = take_stacks(job.pids)
    for one in ranks:
        one.saw(_of(first, one), _of(second, one))
    living = [one for one in ranks if process_start(one.pid) is not None]
    return _evidence(job, living, second, (begun, ended)) if living else None


def _of(taken: TakenStacks, one: _Rank) -> Standing | None:
    stacks = next((stacks for stacks in taken.stacks if stacks.rank == one.rank), None)
    return None if stacks is None else standing(stacks, taken.variables.get(one.rank, ()), one.pid)


def _settle(ranks: list[_Rank]) -> None:
    """Wait until whoever was at rest is at rest again."""
    until = time.monotonic() + SETTLE_S
    clocks = {one.rank: main_clock(one.pid) for one in ranks}
    while time.monotonic() < until:
        time.sleep(REST_S)
        now = {one.rank: main_clock(one.pid) for one in ranks}
        if now == clocks:
            return
        clocks = now


class _Rank:
    """One rank while it is looked at."""

    def __init__(self, rank: int, pid: int) -> None:
        self.rank, self.pid = rank, pid
        self.before: Clock | None = None
        self.after: Clock | None = None
        self.first: Standing | None = None
        self.second: Standing | None = None
        self._sampler = ProcessSampler(pid)
        self._tracker = ActivityTracker(rank)

    def begin(self, now: int) -> None:
        """The window begins."""
        self.before = main_clock(self.pid)
        self.sample(now)

    def sample(self, now: int) -> None:
        """Look at what the process and its descendants use."""
        self._tracker.add(self._sampler.sample(now, 0))

    def end(self) -> None:
        """The window is over."""
        self.after = main_clock(self.pid)

    def saw(self, first: Standing | None, second: Standing | None) -> None:
        """Take what the looks before and after the window showed."""
        self.first, self.second = first, second

    def activity(self, window: tuple[int, int]) -> Activity:
        """What became of it in the window."""
        used = self._tracker.activity
        length = window[1] - window[0]
        part = share(self.before, self.after, length) if self.before and self.after else None
        ran = None if self.before is None or self.after is None else self.after.turns != self.before.turns
        moved = motion(self.first, self.second, used, ran, part)
        if moved is Motion.MOVING and self._may_wait_for_its_gpu(part):
            moved = Motion.UNKNOWN
        frames = self.second.frames if self.second is not None and self.second.is_main else ()
        reason = waits_for(self.pid, used.process_state, frames) if moved is Motion.FROZEN else None
        return replace(used, motion=moved, since=window[0], ran=ran, waits_for=reason)

    def _may_wait_for_its_gpu(self, part: float | None) -> bool:
        """Whether it kept a core busy in one and the same line: any line can wait for a GPU, which looks like work."""
        same = self.first is not None and self.second is not None and self.first.frames == self.second.frames
        return same and part is not None and part > SPINS and uses_gpu(self.pid)


def motion(first: Standing | None, second: Standing | None, used: Activity, ran: bool | None, part: float | None) -> Motion:
    """Whether a rank moved between two looks.

    ``used`` is what its process used in between, ``ran`` whether its main thread ran at all, and ``part`` of how much of the
    time.  A rank in a call is FROZEN only if it cannot have left that call in between, and UNKNOWN if it may be waiting for a
    GPU, which looks like work.  A rank in no call is FROZEN if it used nothing to speak of; ``ran`` tells then whether that is
    certain.
    """
    if first is None or second is None:
        return used.motion
    if first.call is None and second.call is None:
        return _motion_outside(first, second, used, part)
    if first.call is None or second.call is None or first.frames != second.frames:
        return Motion.MOVING
    if second.call.kind is Kind.GROUP:
        return Motion.FROZEN  # such calls look again and again whether all have come, and stand in no loop
    if not second.is_main or ran is None or part is None:
        return Motion.UNKNOWN
    if not ran:
        # A backward's work can be that of other threads.
        works = second.call.op in PASSES and used.motion is Motion.MOVING
        return Motion.MOVING if works else Motion.FROZEN
    # A forward or backward that keeps a core busy computes, most likely.
    return Motion.UNKNOWN if part > SPINS and second.call.op not in PASSES else Motion.MOVING


def _motion_outside(first: Standing, second: Standing, used: Activity, part: float | None) -> Motion:
    if used.motion is not Motion.FROZEN or (part is not None and part > CPU_SHARE):
        return Motion.MOVING if used.motion is not Motion.UNKNOWN else Motion.UNKNOWN
    # A loop that waits is seen in one line and then in another; work goes on to other functions.
    return Motion.FROZEN if _functions(first.frames) == _functions(second.frames) else Motion.MOVING


def _functions(frames: tuple[Frame, ...]) -> list[tuple[str, str]]:
    return [(frame.file, frame.function) for frame in frames if frame.is_users]


def _evidence(job: LivingJob, ranks: list[_Rank], taken: TakenStacks, window: tuple[int, int]) -> Evidence:
    node = socket.gethostname()
    activities = {one.rank: one.activity(window) for one in ranks}
    # A process that is stopped waits for whoever stopped it, and for nothing else.
    stands = {
        one.rank: one.second
        for one in ranks
        if one.second is not None and one.second.call is not None
        if activities[one.rank].motion is not Motion.MOVING and activities[one.rank].process_state not in STOPPED
    }
    world = max(job.world_size or 0, max(job.pids) + 1)
    living = {one.rank for one in ranks}
    gone = [rank for rank in range(world) if rank not in living and (job.all_here or rank in job.pids)]
    return Evidence(
        job=Job(
            command=job.command,
            world_size=world,
            nodes=(node,),
            started=None if job.started is None else int(job.started * 1e9),
        ),
        traces=tuple(
            sorted(
                (
                    *(replace(_trace(one, stands, world), node=node) for one in ranks),
                    *(Trace(rank, exit=Exit(None), node=node, world_size=world) for rank in gone),
                ),
                key=lambda trace: trace.rank,
            )
        ),
        activities=activities,
        stacks=taken.stacks,
        observed_at=window[1],
        notes=(*job.notes, *taken.notes, UNSEEN),
        claims=tuple(_went(one) for one in ranks if activities[one.rank].motion is Motion.MOVING),
        memory=_memory(job.pids),
    )


def _trace(one: _Rank, stands: Mapping[int, Standing], world: int) -> Trace:
    """The call that a rank stands in as its only operation, in the default group unless it was given another."""
    default = Group(DEFAULT, tuple(range(world)), "default_pg")
    here = stands.get(one.rank)
    if here is None or here.call is None:
        return Trace(one.rank, groups={DEFAULT: default}, pid=one.pid, world_size=world)
    call = here.call
    beside = tuple(rank for rank, other in stands.items() if other.call == call)
    group = Group(OTHER, beside) if here.default_group is False else default
    zeros = [array("q", [0]) for _ in range(6)]
    call_, group_, thread, entered, returned, completed = zeros
    table = OperationTable((call,), (group.name,), call_, group_, array("q", [1]), thread, entered, returned, completed)
    return Trace(one.rank, table, groups={group.name: group, DEFAULT: default}, pid=one.pid, world_size=world)


def _went(one: _Rank) -> Claim:
    """What a rank that moves was seen in; ``op`` if it was in a call of torch.distributed."""
    seen = [where for where in (one.first, one.second) if where is not None]
    places = list(dict.fromkeys(_place(where) for where in seen))
    # A pass, or a wait, may as well have been work of its own.
    inside = next((w.call.op for w in seen if w.call is not None and w.call.op not in (*PASSES, WAIT)), None)
    return Claim(ClaimKind.MOVING, (one.rank,), f"moves; {', then '.join(places)}" if places else "moves", op=inside)


def _place(where: Standing) -> str:
    if where.call is not None:
        return f"in {where.call.op} at {place(where.call.site)}"
    frame = next((frame for frame in where.frames if frame.is_users), None)
    return f"at {frame.file.rpartition('/')[2]}:{frame.line} in {frame.function}" if frame is not None else "in a library"


def _memory(pids: Mapping[int, int]) -> dict[int, int]:
    found = {}
    for rank, pid in pids.items():
        with contextlib.suppress(psutil.Error):
            found[rank] = int(psutil.Process(pid).memory_info().rss)
    return found
