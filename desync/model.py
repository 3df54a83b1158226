"""The words of desync as data: what is known of a job, whatever source it came from.

Everything here is frozen and does no I/O.  Sources (journals, flight-recorder dumps, logs) are turned into :class:`Evidence`;
the diagnosis turns evidence into a :class:`Diagnosis`; the report renders it.  What is unknown is ``None`` or an explicit enum
member, never a sentinel number.

Times are nanoseconds since the Unix epoch.  Ranks are global ranks unless a name says otherwise.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


class Kind(str, enum.Enum):
    """What an operation is to the ranks that call it."""

    COLLECTIVE = "collective"
    P2P = "p2p"
    GROUP = "group"
    """A call about a group itself: init_process_group, new_group, split_group, destroy_process_group."""


class Status(str, enum.Enum):
    """What became of the job (``report.json``: ``verdict.status``)."""

    HANG = "hang"
    CRASH = "crash"
    MISMATCH = "mismatch"
    DRIFT = "drift"
    SLOW = "slow"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Cause(str, enum.Enum):
    """Why; each is explained on a page of docs/causes."""

    UNEVEN_INPUTS = "uneven_inputs"
    LEFT_LOOP_EARLY = "left_loop_early"
    RANK_ONLY_COLLECTIVE = "rank_only_collective"
    SKIPPED_COLLECTIVE = "skipped_collective"
    UNUSED_PARAMETERS = "unused_parameters"
    OUT_OF_MEMORY = "out_of_memory"
    EXCEPTION = "exception"
    KILLED = "killed"
    EXITED_EARLY = "exited_early"
    ARGUMENT_MISMATCH = "argument_mismatch"
    ORDER_MISMATCH = "order_mismatch"
    GROUP_ORDER_CYCLE = "group_order_cycle"
    GROUP_CREATION = "group_creation"
    P2P_MISMATCH = "p2p_mismatch"
    STALLED_RANK = "stalled_rank"
    SLOW_RANK = "slow_rank"
    COMMUNICATION_STALLED = "communication_stalled"
    STRUCTURE_MISMATCH = "structure_mismatch"
    REPLICA_DRIFT = "replica_drift"
    RENDEZVOUS = "rendezvous"
    TEARDOWN = "teardown"
    NONE = "none"
    UNKNOWN = "unknown"


class Certainty(str, enum.Enum):
    """How sure a finding is."""

    PROVEN = "proven"
    """The records alone show that it can never complete."""
    LIKELY = "likely"
    POSSIBLE = "possible"


class OperationState(str, enum.Enum):
    """Where a rank stands at the divergence."""

    WAITING = "waiting"
    ABSENT = "absent"
    MISMATCHED = "mismatched"
    COMPLETED = "completed"


class RankState(str, enum.Enum):
    """What a rank's process was doing when it was last seen."""

    WAITING = "waiting"
    RUNNING = "running"
    EXITED = "exited"
    KILLED = "killed"
    RAISED = "raised"
    UNKNOWN = "unknown"


class MarkKind(str, enum.Enum):
    """A point of progress that is no collective."""

    FETCH = "fetch"
    """A batch was asked for (entered) and came (left); ``value`` is its number in this pass over the loader."""
    EXHAUSTED = "exhausted"
    """The loader had no more; ``value`` is the number of batches of the pass."""
    FORWARD = "forward"
    """DDP's forward; ``value`` is "sync" or "no_sync": whether this pass's backward will synchronise."""
    BACKWARD = "backward"
    """``value`` is 1 where each of its buckets was seen to complete, 0 where all count as complete with the backward."""
    STEP = "step"
    """The optimizer stepped."""
    EXCEPTION = "exception"
    """``value`` is the type and message; ``error`` has the rest."""
    EXIT = "exit"
    """The interpreter ends, or ``os._exit`` was called; ``value`` is the status if known."""
    USER = "user"
    """``desync.mark(name, value=...)``."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python (or native) frame."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where the user's code made a call: the innermost user frame first, then its callers (user frames only)."""

    frames: tuple[Frame, ...]

    @property
    def innermost(self) -> Frame:
        """The frame that is reported: file, line, function."""
        return self.frames[0]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Shape and dtype of each tensor that went in or comes out, in order; ``cut`` counts those left out."""

    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    cut: int = 0

    @property
    def dtype(self) -> str | None:
        """The dtype, if all tensors share one."""
        return self.dtypes[0] if len(set(self.dtypes)) == 1 else None


@dataclass(frozen=True, slots=True)
class Call:
    """Everything that one operation was asked to do; equal calls are one object (per trace)."""

    op: str
    """Public name: all_reduce, broadcast, all_gather_into_tensor, send, new_group, …"""
    kind: Kind
    inputs: Tensors = Tensors()
    outputs: Tensors = Tensors()
    reduce_op: str | None = None
    root: int | None = None
    """Global rank of the root of a broadcast, reduce, gather or scatter."""
    peer: int | None = None
    """Global rank of the other side of a send or recv; None for a recv from any."""
    tag: int | None = None
    in_splits: tuple[int, ...] | None = None
    out_splits: tuple[int, ...] | None = None
    is_async: bool | None = None
    site: CallSite | None = None
    bucket: str | None = None
    """"DDP bucket 0: fc.weight, fc.bias" where the operation is DDP's."""
    members: tuple[int, ...] | None = None
    """For Kind.GROUP: the global ranks that the call was given, where known."""
    completion_known: bool = True
    """Whether the source would have seen it complete; if not, a missing completion proves nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its job-wide name, what the user called it, its global ranks in group order, and its backend."""

    name: str
    ranks: tuple[int, ...]
    description: str | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one rank: a row of :class:`OperationTable`."""

    rank: int
    index: int
    """Row in the rank's table; rows are in the order in which the rank entered them."""
    group: str
    seq: int
    """Position in the group on this rank, from 1; for p2p in the (source, destination) pair of the group."""
    call: Call
    thread: int
    entered: int | None
    returned: int | None
    """When the call came back; for an asynchronous operation that says nothing about its completion."""
    completed: int | None
    """When the communication finished, where that can be known."""
    failed: bool
    """It ended with an error."""
    pending: bool
    """It was entered and is not known to have finished, and this source would have known."""


def _q() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True)
class OperationTable:
    """The operations that one rank entered, oldest first, in columns.

    A job has millions of operations; columns of machine integers keep a thousand ranks within memory.  0 in a time column
    means that it did not happen (yet) or is not known; :meth:`row` turns it into ``None``.
    """

    calls: tuple[Call, ...] = ()
    groups: tuple[str, ...] = ()
    call: array[int] = field(default_factory=_q)
    """Index into ``calls``."""
    group: array[int] = field(default_factory=_q)
    """Index into ``groups``."""
    seq: array[int] = field(default_factory=_q)
    thread: array[int] = field(default_factory=_q)
    entered: array[int] = field(default_factory=_q)
    returned: array[int] = field(default_factory=_q)
    completed: array[int] = field(default_factory=_q)
    """Negative: it failed, at minus this time."""
    def __len__(self) -> int:
        return len(self.seq)

    def row(self, rank: int, index: int) -> Operation:
        """The operation at ``index`` (negative counts from the end) as an object."""
        if index < 0:
            index += len(self)
        completed = self.completed[index]
        call = self.calls[self.call[index]]
        done = bool(completed) or (call.kind is Kind.GROUP and bool(self.returned[index]))
        return Operation(
            rank=rank,
            index=index,
            group=self.groups[self.group[index]],
            seq=self.seq[index],
            call=call,
            thread=self.thread[index],
            entered=self.entered[index] or None,
            returned=self.returned[index] or None,
            completed=abs(completed) or None,
            failed=completed < 0,
            pending=not done and (call.completion_known or not self.returned[index]),
        )

    def rows(self, rank: int) -> Iterator[Operation]:
        """All operations, oldest first."""
        return (self.row(rank, index) for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that a rank raised: uncaught, or still being handled while the rank was already in a collective."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    """Innermost first."""
    uncaught: bool = True
    out_of_memory: bool = False


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
    operations: OperationTable = OperationTable()
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

    @property
    def failure(self) -> Mark | None:
        """The first exception mark."""
        return next((mark for mark in self.marks if mark.kind is MarkKind.EXCEPTION), None)


class Motion(str, enum.Enum):
    """Whether a process moves, seen from outside."""

    MOVING = "moving"
    FROZEN = "frozen"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Activity:
    """A rank's process as sampled from outside while others waited for it."""

    rank: int
    motion: Motion
    since: int | None = None
    """Start of the present state (frozen since …)."""
    process_state: str | None = None
    """/proc's word: running, sleeping, disk-sleep, stopped, zombie."""
    cpu_s: float | None = None
    """CPU seconds used during the observation."""
    io_bytes: int | None = None
    """Bytes read and written during the observation."""


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


class ClaimKind(str, enum.Enum):
    """What a message of torch, NCCL, the launcher or the kernel says about ranks; it is a statement, not a record."""

    ABSENT = "absent"
    """``ranks`` did not come to the operation (monitored_barrier's list, the desync report)."""
    BEHIND = "behind"
    """``ranks`` have done fewer operations of this kind than the others, in more than one look (ncclras)."""
    NETWORK = "network"
    """The network failed; ``ranks`` only wrote it down."""
    KERNEL = "kernel"
    """The kernel or the scheduler ended ``ranks`` for want of memory."""
    MISMATCH = "mismatch"
    """``ranks`` called something else than the others (DDP's and the wrapper's own comparisons)."""
    RENDEZVOUS = "rendezvous"
    """``ranks`` did not come to init_process_group; empty where only their number is known."""
    FINISHED = "finished"
    """The program itself said that its work was done."""
    MOVING = "moving"
    """``ranks`` still made progress while others had given up waiting."""
    TEARDOWN = "teardown"
    """``ranks`` were held or aborted in the watchdog or in exit."""
    OUT_OF_MEMORY = "out_of_memory"
    """``ranks`` ran out of device memory and printed it without ending."""
    RAISED = "raised"
    """Somebody raised an exception that is nobody's consequence: ``ranks`` as far as it can be guessed, else empty."""
    STRUCTURE = "structure"
    """``ranks`` built another model than the others, as DDP found."""


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

    def trace(self, rank: int) -> Trace | None:
        """The trace of a rank, or None if nothing is known of it."""
        return next((trace for trace in self.traces if trace.rank == rank), None)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: what, who, why, what to change."""

    status: Status
    cause: Cause
    certainty: Certainty
    culprit_ranks: tuple[int, ...]
    summary: str
    """One sentence."""
    advice: str
    evidence: tuple[str, ...] = ()
    follows_from: int | None = None
    """Index of the finding of which this is a consequence."""
    time: int | None = None
    """When it began."""
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True)
class AtDivergence:
    """Where one rank stands at the divergence: its operation there (or the one it is in instead)."""

    state: OperationState
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first operation at which the ranks of a group stop agreeing."""

    group: Group
    kind: str
    """collective, p2p, group_creation or rendezvous."""
    seq: int
    op: str
    by_rank: Mapping[int, AtDivergence]
    bucket: str | None = None
    time: int | None = None
    """When the last rank that came had come."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, first one first, and what could not be seen."""

    findings: Sequence[Finding]
    status: Status
    """Of the job: the first finding's, or healthy or unknown."""
    states: Mapping[int, RankState]
    notes: tuple[str, ...] = ()
    awaiting: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Each absent rank that is alive, with those that wait for it: not (yet) a fault."""
