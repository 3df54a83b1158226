"""The Report: what was found in one job, complete enough to be saved as ``report.json`` and rendered in any format.

The fields and their names are those of ``report.json``, schema ``desync.report/1`` (docs/report.schema.json).  Fields without a
default are the contract; those with a default were added to it and may be missing in a report of another version.  Times are
ISO 8601 with zone, or None if unknown.  Frames run from the innermost outwards.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from desync.model import Cause, Certainty, Frame, Kind, OperationState, RankState, Status

SCHEMA = "desync.report/1"


@dataclass(frozen=True, slots=True)
class Timing:
    """When the ranks parted (nanoseconds since the Unix epoch) and how many seconds later desync saw it and had the stacks."""

    diverged_at: int | None = None
    detected_after_s: float | None = None
    stacks_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobEntry:
    """The job as it was started, and how it ended."""

    command: tuple[str, ...]
    world_size: int | None
    nodes: tuple[str, ...]
    torch: str | None
    backends: tuple[str, ...]
    started: str | None
    ended: str | None
    exit_code: int | None
    attempt: int
    desync: str | None = None
    """Version of desync that wrote the report."""
    python: str | None = None


class Role(str, enum.Enum):
    """What ranks do at a place in the code."""

    WAITS = "waits"
    """They are inside the operation of the divergence."""
    INSTEAD = "instead"
    """They are in another operation instead of it."""
    RAISED = "raised"
    """They raised an exception there."""
    EXITED = "exited"
    """They ended themselves there."""
    AT = "at"
    """Their stack shows them there, outside any operation."""
    LAST = "last"
    """Their last known operation was called there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the user's code some ranks are: the innermost user frame, with its callers."""

    ranks: tuple[int, ...]
    role: Role
    frame: Frame
    op: str | None = None
    callers: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer: the first finding without its evidence, or that there is none."""

    status: Status
    cause: Cause
    certainty: Certainty
    culprit_ranks: tuple[int, ...]
    summary: str
    advice: str
    places: tuple[Place, ...] = ()
    """Culprits first, then those that wait."""


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """One fault; ``follows_from`` is the index of the finding of which it is a consequence."""

    status: Status
    cause: Cause
    certainty: Certainty
    culprit_ranks: tuple[int, ...]
    summary: str
    advice: str
    evidence: tuple[str, ...]
    follows_from: int | None
    time: str | None = None
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class RankAtDivergence:
    """Where one rank stands at the divergence; the fields after ``state`` are those of the operation that it is in, if any."""

    state: OperationState
    op: str | None
    shapes: tuple[tuple[int, ...], ...] | None
    dtype: str | None
    reduce_op: str | None
    root: int | None
    peer: int | None
    seq: int | None
    callsite: Frame | None
    callers: tuple[Frame, ...] = ()
    group: str | None = None
    tag: int | None = None
    in_splits: tuple[int, ...] | None = None
    out_splits: tuple[int, ...] | None = None
    entered: str | None = None


@dataclass(frozen=True, slots=True)
class DivergenceEntry:
    """The first operation at which the ranks of a group stop agreeing.

    ``kind`` is collective, p2p, group_creation or rendezvous.
    """

    group: str
    group_ranks: tuple[int, ...]
    kind: str
    seq: int
    op: str
    bucket: str | None
    by_rank: Mapping[int, RankAtDivergence]
    description: str | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class ExceptionEntry:
    """An exception that a rank raised."""

    type: str
    message: str
    uncaught: bool = True
    out_of_memory: bool = False
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgressEntry:
    """How far a rank came, counted since it started."""

    batches: int
    forwards: int
    backwards: int
    steps: int
    loader_exhausted: bool


@dataclass(frozen=True, slots=True)
class LastOperation:
    """The operation that a rank entered last."""

    group: str
    seq: int
    op: str


@dataclass(frozen=True, slots=True)
class RankEntry:
    """One rank: its process, what it was doing when it was last seen, and how far it came."""

    rank: int
    node: str | None
    pid: int | None
    state: RankState
    exit_code: int | None
    exception: ExceptionEntry | None
    progress: ProgressEntry
    last: LastOperation | None
    memory_bytes: int | None = None
    """Resident memory when it was last looked at."""


@dataclass(frozen=True, slots=True)
class MergedStack:
    """A thread's stack that all of ``ranks`` show; ``source`` is py-spy, faulthandler or journal."""

    ranks: tuple[int, ...]
    source: str
    thread: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class TimingEntry:
    """When the ranks parted, and how many seconds later that was detected and the stacks were taken."""

    diverged_at: str | None
    detected_after_s: float | None
    stacks_after_s: float | None


class CellState(str, enum.Enum):
    """What became of one operation on one rank, as far as the window shows it."""

    DONE = "done"
    WAITING = "waiting"
    ABSENT = "absent"
    MISMATCHED = "mismatched"
    FAILED = "failed"
    UNSEEN = "unseen"
    """No record of this position was kept."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One operation of a rank; only ``state`` is known of one that is absent or unseen."""

    state: CellState
    group: str | None = None
    seq: int | None = None
    op: str | None = None
    bucket: str | None = None
    shapes: tuple[tuple[int, ...], ...] | None = None
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    callsite: Frame | None = None


@dataclass(frozen=True, slots=True)
class WindowRow:
    """Ranks whose last operations are the same, with one cell for each column; None: not reached."""

    ranks: tuple[int, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The last operations around the divergence, rank by rank.

    ``columns`` names the positions: sequence numbers in ``group``, or, where sequences have no common positions (p2p,
    creation of groups), how far each rank's operation lies back ("-2", "-1", "now").  ``at`` is the column of the divergence.
    """

    group: str
    columns: tuple[str, ...]
    at: int
    rows: tuple[WindowRow, ...]


@dataclass(frozen=True, slots=True)
class WaitEntry:
    """An edge of the wait-for graph: ranks that are inside an operation, and those that it misses."""

    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    kind: Kind
    group: str
    seq: int
    op: str


@dataclass(frozen=True, slots=True)
class LatenessEntry:
    """How many seconds after the first rank one comes to the operations that all do together."""

    rank: int
    median_s: float
    worst_s: float
    last: int
    """How many times it came last of all."""
    alone_s: float = 0.0
    """How long all others together had come and waited for it alone, added up."""
    longest_s: float = 0.0
    """The longest that they waited for it alone in one operation."""
    longest_seq: int | None = None
    """The number of that operation."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Who makes the others wait, over the last ``operations`` collectives of ``group`` that all its ranks have done."""

    group: str
    operations: int
    ranks: tuple[LatenessEntry, ...]
    aligned: bool = True
    """Whether the clocks of all machines could be compared; if not, only ranks of one machine compare."""


@dataclass(frozen=True, slots=True)
class DdpBucket:
    """A bucket of gradients: ``elements`` and ``bytes`` as they were communicated, None if it was never launched."""

    index: int
    parameters: tuple[str, ...]
    """The first of its parameters' names, in the order in which the bucket holds them."""
    count: int
    """Of all its parameters."""
    elements: int | None = None
    bytes: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class DdpTimes:
    """Durations of a training step in seconds, None where they cannot be known.

    ``compute_s`` runs from the end of forward until the last gradient was ready, ``communication_s`` from the launch of the
    first bucket until backward returned, ``overlap_s`` is what both have in common, and ``tail_s`` the communication that
    nothing hides.  ``step_s`` is the distance between two optimizer steps.
    """

    step_s: float | None = None
    forward_s: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    overlap_s: float | None = None
    tail_s: float | None = None
    wait_s: float | None = None
    """The part of the tail in which some rank had not launched its last bucket yet."""


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """One bucket in one step: when its all_reduce was launched and when it was over, in seconds from the step's start."""

    index: int
    launched_s: float
    completed_s: float | None


@dataclass(frozen=True, slots=True)
class DdpStep:
    """One step of one rank as it was recorded; times in seconds from the start of its forward."""

    rank: int
    number: int
    """Which of the rank's backward passes it is, from 1."""
    forward_end_s: float
    backward_start_s: float
    compute_end_s: float
    """The last bucket was launched: every gradient was ready."""
    backward_end_s: float
    optimizer_s: float | None
    buckets: tuple[BucketSpan, ...]


@dataclass(frozen=True, slots=True)
class DdpEntry:
    """How one DistributedDataParallel module synchronises, as the records show it."""

    name: str
    group: str
    parameters: int
    buckets: tuple[DdpBucket, ...]
    find_unused_parameters: bool | None
    static_graph: bool | None
    gradient_as_bucket_view: bool | None = None
    bucket_cap_bytes: int | None = None
    steps: int = 0
    """Steps that were measured, over all ranks that were looked at."""
    measured: DdpTimes | None = None
    """Medians over those steps."""
    torch: DdpTimes | None = None
    """What torch's own logger says, as averages (``_get_ddp_logging_data``)."""
    picture: DdpStep | None = None
    """The step that is nearest to the medians."""
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is said about one job."""

    job: JobEntry
    verdict: Verdict
    findings: tuple[FindingEntry, ...]
    divergence: DivergenceEntry | None
    ranks: tuple[RankEntry, ...]
    stacks: tuple[MergedStack, ...]
    timing: TimingEntry
    notes: tuple[str, ...]
    window: Window | None = None
    waits: tuple[WaitEntry, ...] = ()
    lateness: Lateness | None = None
    ddp: tuple[DdpEntry, ...] = ()
    schema: str = field(default=SCHEMA)
