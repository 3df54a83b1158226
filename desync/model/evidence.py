"""All that is known of one job at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from desync.model.calls import Frame
from desync.model.traces import Trace
from desync.model.words import ClaimKind, Motion


@dataclass(frozen=True, slots=True)
class Activity:
    """A rank's process as sampled from outside while others waited for it."""

    rank: int
    motion: Motion
    since: int | None = None
    """Start of the present state (frozen since …)."""
    process_state: str | None = None
    """/proc's word: running, sleeping, disk-sleep, stopped, tracing-stop, zombie."""
    cpu_s: float | None = None
    """CPU seconds used during the observation."""
    io_bytes: int | None = None
    """Bytes read and written during the observation."""
    ran: bool | None = None
    """Whether its main thread ran at all during the observation: one that did not is where it was.  None: not known."""
    waits_for: str | None = None
    """What its main thread waits for, as far as the kernel and the stack tell: "sleeps", "waits for a lock", …"""
    wakes: int | None = None
    """How often its main thread was given a core during the observation."""


@dataclass(frozen=True, slots=True)
class KernelKills:
    """Processes that the kernel ended for want of memory while these ranks ran."""

    ranks: tuple[int, ...]
    count: int
    """Never 0."""
    in_cgroup: bool
    """Of the cgroup of these ranks; otherwise anywhere on their machine."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One thread's frames, innermost first."""

    thread: str
    frames: tuple[Frame, ...]
    holds_gil: bool | None = None


@dataclass(frozen=True, slots=True)
class RankStacks:
    """Stacks of one rank's threads at one moment."""

    rank: int
    source: str
    """py-spy, faulthandler or journal."""
    time: int | None
    threads: tuple[Stack, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """The job as its launch line and environment show it."""

    command: tuple[str, ...] = ()
    world_size: int | None = None
    nodes: tuple[str, ...] = ()
    torch: str | None = None
    backends: tuple[str, ...] = ()
    started: int | None = None
    ended: int | None = None
    exit_code: int | None = None
    attempt: int = 0
    python: str | None = None
    told_to_end: int | None = None
    """When its user, its scheduler or desync told it to end, as far as its watcher saw that."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a log or of a tool, with who made it; the diagnosis weighs it, the report quotes it."""

    kind: ClaimKind
    ranks: tuple[int, ...]
    """Whom it is about; the ranks of the job."""
    text: str
    """The words, shortened."""
    by: int | None = None
    """The rank that said it, where known."""
    time: int | None = None
    group: str | None = None
    op: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one job at one moment."""

    job: Job
    traces: tuple[Trace, ...]
    """At most one a rank, sorted by rank."""
    activities: Mapping[int, Activity] = field(default_factory=dict)
    stacks: tuple[RankStacks, ...] = ()
    observed_at: int | None = None
    """The moment of the observation; with ``ended`` the job's end."""
    ended: bool = False
    hang_after_ns: int = 10_000_000_000
    """How long an absent rank must be frozen before it is called stalled."""
    notes: tuple[str, ...] = ()
    loops: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """First and last line of each loop in the user's files, where their source could be read: whether two calls are in the
    same loop tells a rank that left it from one that makes a call more in it."""
    claims: tuple[Claim, ...] = ()
    """What messages say beyond what can be shown as operations, marks and exits."""

    memory: Mapping[int, int] = field(default_factory=dict)
    """Resident memory in bytes by rank, when it was last looked at."""

    kernel_kills: tuple[KernelKills, ...] = ()

    last_words: tuple[str, ...] = ()
    """What native code printed before it ended a process; which rank's, nobody says."""

    def trace(self, rank: int) -> Trace | None:
        """The trace of a rank, or None if nothing is known of it."""
        return next((trace for trace in self.traces if trace.rank == rank), None)
