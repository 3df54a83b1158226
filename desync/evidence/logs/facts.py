"""What lines say, as data: one dataclass for each kind of statement, before anybody has decided which rank it is about."""

from __future__ import annotations

from dataclasses import dataclass, field

from desync.evidence.logs.speakers import Speaker
from desync.model import Frame


@dataclass(frozen=True, slots=True)
class GroupTag:
    """How a line of NCCL's process group names its group: ``[PG ID P PG GUID G(DESC) Rank R]`` and its older forms."""

    rank: int
    """The speaker's rank in the group."""
    local: int | None = None
    """Number of the group in the speaker's process; means nothing elsewhere."""
    guid: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Timeout:
    """The watchdog gave up waiting for an operation."""

    speaker: Speaker
    order: int
    time: int | None
    group_rank: int | None
    tag: GroupTag | None
    seq: int
    op: str
    sizes: tuple[int | None, int | None]
    """Elements in and out."""
    limit_ms: int
    ran_ms: int


@dataclass(frozen=True, slots=True)
class Status:
    """Counters of a group at its time-out; they count whatever came last, p2p included."""

    speaker: Speaker
    tag: GroupTag | None
    work: int
    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class DumpSignal:
    """A rank's monitor was asked to dump; the counters are those of the default group."""

    speaker: Speaker
    time: int | None
    tag: GroupTag | None
    enqueued: int
    completed: int
    own: bool
    """The time-out was its own."""


@dataclass(frozen=True, slots=True)
class Lagging:
    """A line of the desync report: ranks (of the group) that did not join an operation."""

    speaker: Speaker
    tag: GroupTag | None
    ranks: tuple[int, ...]
    finished: int
    missing: int | None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """An operation as TORCH_DISTRIBUTED_DEBUG=DETAIL prints it; ``seq`` is counted from 1 here."""

    speaker: Speaker
    order: int
    time: int | None
    group_rank: int
    seq: int
    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    mismatch: bool
    """It was refused: another rank runs another one."""
    other: int | None = None
    """Which rank of the group that is, by the speaker's words; what it runs is often misprinted."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """monitored_barrier: ranks that failed to pass (``missing``), or one that says that it reached it."""

    speaker: Speaker
    order: int
    time: int | None
    by: int | None
    missing: tuple[int, ...] = ()
    reached: int | None = None
    text: str = ""


@dataclass(slots=True)
class Traceback:
    """A Python traceback; frames innermost first."""

    speaker: Speaker
    order: int
    time: int | None
    type: str = ""
    message: str = ""
    frames: list[Frame] = field(default_factory=list)
    launcher: bool = False
    """It is torchrun's own."""
    tree: int | None = None
    """It is one of a group of exceptions: the order of that group's head."""
    handled: bool = False
    """Its process went on with its work: somebody caught and printed it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the launcher says that a rank ended."""

    speaker: Speaker
    order: int
    time: int | None
    code: int
    rank: int | None
    local: int | None
    pid: int | None
    host: str | None
    root: bool = False
    """It is called the first observed failure, which is not the first cause."""
    task: int | None = None
    """srun's number, which is the rank only where tasks are ranks."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A line about the network, the kernel, the watchdog or memory that stands for itself."""

    kind: str
    """network, network_back, peer_gone, kernel, oom_events, srun_memory, heartbeat, gil, nccl_error, cuda_error,
    out_of_memory, no_server, or an end that names no rank: srun_end, launcher_end, shell_end, pod_memory, death_signal."""
    speaker: Speaker
    order: int
    time: int | None
    text: str
    pid: int | None = None
    host: str | None = None
    number: int | None = None
    """The GPU for out_of_memory, the task for srun_memory, the signal for death_signal, the status of an end."""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """The kernel's word on an error of a GPU (NVIDIA's Xid)."""

    code: int
    bus: str
    pid: int | None
    """The process that used it, where the driver knows."""
    host: str | None


@dataclass(frozen=True, slots=True)
class Joining:
    """A rank waits for others in the rendezvous (or in the creation of a group, for a key above 1)."""

    speaker: Speaker
    order: int
    rank: int | None
    world: int
    came: int
    key: int
    time: int | None
    gave_up: bool


@dataclass(frozen=True, slots=True)
class Communicator:
    """A process took its place in an NCCL communicator."""

    host: str
    pid: int
    rank: int
    size: int


@dataclass(slots=True)
class Facts:
    """Everything that the logs of one run say."""

    timeouts: list[Timeout] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    dumps: list[DumpSignal] = field(default_factory=list)
    observers: list[Speaker] = field(default_factory=list)
    """Ranks that dump only because another one asked for it."""
    lagging: list[Lagging] = field(default_factory=list)
    refused: dict[int, None] = field(default_factory=dict)
    """Order of the lines with which the wrapper refused an operation, whether or not they could be read."""
    printed: dict[tuple[Speaker, int], list[Fingerprint]] = field(default_factory=dict)
    """The newest operations that DETAIL's wrapper printed, by who said it and the rank in the group."""
    barriers: list[Barrier] = field(default_factory=list)
    tracebacks: list[Traceback] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    gpu_faults: dict[GpuFault, None] = field(default_factory=dict)
    """Kept apart from ``troubles``: they are no finding, and leave a job that went well healthy."""
    xccl: bool = False
    """Time-outs are those of Intel's groups."""
    rendezvous: dict[int, dict[tuple[int | None, int | None], Joining]] = field(default_factory=dict)
    """By key of the barrier the newest line of each rank, by the rank in the line and that of the speaker."""
    communicators: list[Communicator] = field(default_factory=list)
    placed: dict[tuple[str, int], int] = field(default_factory=dict)
    """Ranks by address and process, as who started them says."""
    speakers: dict[Speaker, None] = field(default_factory=dict)
    launched: bool = False
    """torchrun speaks: tasks and files may be those of its nodes."""
    tasks: int = -1
    """The largest number of a task of srun's."""
    stacks: dict[tuple[int, int], list[Frame]] = field(default_factory=dict)
    """For (index into ``timeouts``, 0): frames of the operation's call, innermost first."""
    signalled: dict[tuple[int, int], None] = field(default_factory=dict)
    """Processes that the launcher itself ended: (file, pid)."""
    world_sizes: list[int] = field(default_factory=list)
    torch: str | None = None
    left: dict[Speaker, None] = field(default_factory=dict)
    """Who ended without destroying its groups, as torch warns: well or not."""
    worked_on: str = ""
    """A step before the last that is told of after the newest of them left."""
    finished: int | None = None
    """Order of the newest line with which the program says that its work is done."""
    finished_text: str = ""
    moving: str = ""
    """A progress bar that went on after the first time-out."""
    exit_aborted: bool = False
    """Processes were aborted in their exit ("terminate called without an active exception"), after the work was done."""
    cancelled: str = ""
    """The scheduler's words with which it ended the job."""
    sizes_differ: str = ""
    """gloo's words about a buffer that is too small for what came."""
    survived: int = 0
    """Errors after which the job went on and ended well."""
    repeated: int = 0
    """Lines that Ray folded away: ranks that are not printed are not absent."""

    @property
    def failures(self) -> int:
        """How many lines speak of a failure."""
        own = (len(self.timeouts), len(self.ended), len(self.tracebacks), len(self.barriers), len(self.lagging))
        return sum(own) + len(self.refused)

    def forget(self, file: int) -> None:
        """A file's job went on after its errors and ended well: they were quoted, or dealt with."""
        before = self.failures
        self.timeouts = [each for each in self.timeouts if each.speaker.file != file]
        self.statuses = [each for each in self.statuses if each.speaker.file != file]
        self.dumps = [each for each in self.dumps if each.speaker.file != file]
        self.observers = [each for each in self.observers if each.file != file]
        self.lagging = [each for each in self.lagging if each.speaker.file != file]
        self.barriers = [each for each in self.barriers if each.speaker.file != file]
        self.tracebacks = [each for each in self.tracebacks if each.speaker.file != file]
        self.troubles = [each for each in self.troubles if each.speaker.file != file]
        self.printed = {who: kept for who, kept in self.printed.items() if who[0].file != file}
        self.refused.clear()
        self.stacks.clear()
        self.survived += before - self.failures

    @property
    def joining(self) -> list[Joining]:
        """Who waits in the rendezvous, or did."""
        return sorted((each for kept in self.rendezvous.values() for each in kept.values()), key=lambda each: each.order)

    @property
    def fingerprints(self) -> list[Fingerprint]:
        """All that is kept of what the wrapper printed."""
        return [each for kept in self.printed.values() for each in kept]

    @property
    def failed(self) -> bool:
        """Whether anything here speaks of a failure."""
        return bool(self.failures)
