"""What is known of one rank: its operations, marks, progress and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from desync.model.calls import CallSite, Frame, Group, OperationTable
from desync.model.words import MarkKind


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that a rank raised: uncaught, or still being handled while the rank was already in a collective."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    uncaught: bool = True
    out_of_memory: bool = False
    passed: bool = False
    """It was seen on its way out of a forward or a backward: whether somebody caught it is not said here."""
    thread: str | None = None
    """Name of the thread that it ended; None for the main thread, with which the rank ends."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of progress of one rank."""

    kind: MarkKind
    time: int
    left: int | None = None
    """For marks that last (fetch, forward, backward): when they were over; None while they last."""
    name: str | None = None
    """Of the loader, the DDP module, or the user's mark."""
    value: str | int | None = None
    after: int = 0
    """How many operations the rank had entered before (counted from its start): the place of the mark among them."""
    site: CallSite | None = None
    failure: Failure | None = None
    thread: int | None = None
    """The operating system's number of the thread that made it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts since the rank started; they survive where the marks themselves were overwritten."""

    batches: int = 0
    forwards: int = 0
    backwards: int = 0
    steps: int = 0
    loader_exhausted: bool = False
    """The last pass over a loader has ended and no other has begun."""
    passes: tuple[int, ...] = ()
    """Batches of each finished pass over a loader, oldest first (the last 64)."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a rank's process ended."""

    time: int | None
    code: int | None = None
    """Exit status as Python's subprocess counts: negative is a signal."""
    announced: bool = False
    """The rank itself said that it was about to exit (exit mark)."""

    @property
    def signal(self) -> int | None:
        """The signal that ended it, if known."""
        return -self.code if self.code is not None and self.code < 0 else None


@dataclass(frozen=True, slots=True)
class DdpModule:
    """A DistributedDataParallel module of one rank."""

    name: str
    group: str
    parameters: tuple[str, ...]
    buckets: tuple[tuple[int, ...], ...] = ()
    """Indices into ``parameters`` of each bucket, in the order in which they are launched."""
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    torch: Mapping[str, int | str] = field(default_factory=dict)
    """What torch's own logger said of it last (``_get_ddp_logging_data``): sizes in bytes, times in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """A DistributedSampler of one rank: the epoch that it was in at the start of its first passes."""

    name: str
    shuffle: bool
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of one rank."""

    rank: int
    operations: OperationTable = field(default_factory=OperationTable)
    marks: tuple[Mark, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    progress: Progress = Progress()
    exit: Exit | None = None
    ddp: tuple[DdpModule, ...] = ()
    samplers: tuple[Sampler, ...] = ()
    pid: int | None = None
    node: str | None = None
    world_size: int | None = None
    dropped: int = 0
    """Operations that the ring has overwritten; those in ``operations`` come after them."""
    notes: tuple[str, ...] = ()
    """What the recorder could not see, and why."""
    finished: int | None = None
    """When the main thread had left the program: the interpreter ends as soon as the other threads do."""

    @property
    def failure(self) -> Mark | None:
        """The first exception mark of those that the rank does not outlive."""
        return next((mark for mark in self.marks if mark.kind is MarkKind.EXCEPTION and not self.outlives(mark)), None)

    def outlives(self, mark: Mark) -> bool:
        """Whether an exception ended neither the rank nor a thread that communicates for it."""
        if mark.failure is None or (mark.failure.thread is None and not mark.failure.passed):
            return False
        return mark.failure.passed or mark.thread not in self.operations.thread

    @property
    def passed_failures(self) -> tuple[Mark, ...]:
        """The exceptions that passed, oldest first."""
        return tuple(mark for mark in self.marks if mark.failure is not None and mark.failure.passed)

    @property
    def thread_failures(self) -> tuple[Mark, ...]:
        """The exceptions that ended threads other than the main one, oldest first."""
        return tuple(mark for mark in self.marks if mark.failure is not None and mark.failure.thread is not None)
