"""The closed vocabularies: every word that a field can hold."""

from __future__ import annotations

import enum


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


class Motion(str, enum.Enum):
    """Whether a process moves, seen from outside."""

    MOVING = "moving"
    FROZEN = "frozen"
    UNKNOWN = "unknown"


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
    PRESENT = "present"
    """``ranks`` waited, or may have: that nothing shows them in an operation does not say that they were absent."""
    RENDEZVOUS = "rendezvous"
    """``ranks`` did not come to init_process_group; empty where only their number is known."""
    FINISHED = "finished"
    """The program itself said that its work was done."""
    CANCELLED = "cancelled"
    """The scheduler ended the job: its time was over, or somebody or something else wanted it."""
    MOVING = "moving"
    """``ranks`` still made progress while others had given up waiting."""
    TEARDOWN = "teardown"
    """``ranks`` were held or aborted in the watchdog or in exit."""
    OUT_OF_MEMORY = "out_of_memory"
    """``ranks`` ran out of device memory and printed it without ending."""
    RAISED = "raised"
    """Somebody raised an exception that is nobody's consequence: ``ranks`` as far as it can be guessed, else empty."""
    ENDED = "ended"
    """Processes ended, and nobody says which ranks they were: ``op`` is "memory", "killed", "shell", "exited" or "told"."""
    STRUCTURE = "structure"
    """``ranks`` built another model than the others, as DDP found."""
