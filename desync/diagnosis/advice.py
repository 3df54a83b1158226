"""What to change, for each cause."""

from __future__ import annotations

from collections.abc import Mapping

from desync.model import Cause

ADVICE: Mapping[Cause, str] = {
    Cause.UNEVEN_INPUTS: (
        "Give every rank the same number of batches: DistributedSampler with drop_last=True (or padding), or agree on the "
        "smallest number; where lengths must differ, wrap the loop in torch.distributed.algorithms.Join."
    ),
    Cause.LEFT_LOOP_EARLY: (
        "Let all ranks leave the loop together: decide on one rank and broadcast the decision, or all_reduce the value that "
        "decides, before anybody breaks."
    ),
    Cause.RANK_ONLY_COLLECTIVE: ("Call it on all ranks of the group (move it out of the branch), or use no collective there."),
    Cause.SKIPPED_COLLECTIVE: (
        "Make the skip collective: let all ranks decide together before one leaves a step's collectives out "
        "(continue, a caught error, no_sync, one microbatch less)."
    ),
    Cause.UNUSED_PARAMETERS: (
        "Pass find_unused_parameters=True to DistributedDataParallel, or use the parameters on every rank (add them to the "
        "loss with weight zero)."
    ),
    Cause.OUT_OF_MEMORY: (
        "Make that rank need less memory (smaller batch, shorter sequences), and do not swallow the error on one rank only."
    ),
    Cause.EXCEPTION: "Fix the exception; ranks that did not raise only waited.",
    Cause.KILLED: (
        "Look for who sent the signal: the kernel for lack of memory (dmesg, the cgroup's memory.events), the scheduler, "
        "or a person."
    ),
    Cause.EXITED_EARLY: "See why it ended: what it returned from or called exit in, and let all ranks end at the same point.",
    Cause.ARGUMENT_MISMATCH: "Make the differing argument equal on all ranks before the call.",
    Cause.ORDER_MISMATCH: "Call the operations in one order on all ranks (sort the keys that are looped over).",
    Cause.GROUP_ORDER_CYCLE: "Use the groups in one order on all ranks, and one group for each thread.",
    Cause.GROUP_CREATION: "Create all groups on all ranks, in one order, also on ranks that are no members.",
    Cause.P2P_MISMATCH: "Pair each send with its recv; post both sides at once with batch_isend_irecv.",
    Cause.STALLED_RANK: "Look at its stack (under Stacks): what it waits for outside torch.distributed is what holds the job.",
    Cause.SLOW_RANK: "Balance the work between the ranks, or raise the timeout of init_process_group if this is expected.",
    Cause.COMMUNICATION_STALLED: (
        "All ranks agree, so look below torch: the network, the GPU, what NCCL says (nccl-*.log in the run directory)."
    ),
    Cause.STRUCTURE_MISMATCH: (
        "Build the same model on all ranks: the errors name the first difference; look for what depends on the rank, the data "
        "or a file."
    ),
    Cause.RENDEZVOUS: "Check that every rank was started, with the same MASTER_ADDR, MASTER_PORT and world size.",
    Cause.TEARDOWN: (
        "Call destroy_process_group() on all ranks, and end what was started (threads, loaders, loggers) before the program "
        "ends; a thread that may be left alone is made with daemon=True."
    ),
    Cause.UNKNOWN: "Run it under desync watch from the start, with a larger --hang-after, to see more.",
}

STOPPED_ADVICE = (
    "Let it go on (kill -CONT with its pid, or detach the debugger), and look for who stopped it: a person, a terminal, the "
    "scheduler."
)
HOST_MEMORY = (
    "The memory of the host ran out, not that of the GPU: fewer or leaner loader workers, smaller caches, or a larger memory "
    "limit for the job."
)
MEMORY_ADVICE = (
    "The kernel ended processes for want of memory: give the job more, or let its ranks and their loader workers need less "
    "(count what all of them need together)."
)


BEFORE_THE_START = (
    "See what it waits for before init_process_group (its stack, under Stacks): the others cannot begin without it."
)
UNEVEN_PAIRS = (
    "Make as many sends as recvs on both sides of a pair; in a pipeline, give all stages the same number of microbatches."
)
"""Of a rank that is known to have left one side of a pair out."""

END_WHAT_WAS_STARTED = (
    "End what was started (threads, loaders, loggers) before the program ends; a thread that may be left alone is made with "
    "daemon=True."
)
"""Of a rank that has destroyed its groups and does not end."""

WORKER_KILLED = (
    "A loader's worker was ended from outside, most often by the kernel for want of host memory (see dmesg): fewer or leaner "
    "workers, smaller caches, or a larger memory limit for the job."
)

HELD_BACK = (
    "Fix the exception, and wait for nobody while it is on its way (in finally, in an except block, in a with): the others "
    "do not come there."
)
AFTER_ITS_THREAD = (
    "Fix what its thread raised, and let whoever waits for the thread hear of it (a time-out, an error handed on)."
)
BUFFERS = (
    "A forward of DistributedDataParallel broadcasts the module's buffers: run the evaluation on all ranks, or call the module "
    "inside it (model.module) where only some ranks evaluate."
)

FORGOTTEN = (
    "Keep what isend and irecv return, and wait() for it before the tensor is used again or the rank goes on: on gloo an "
    "operation whose handle is gone may never be done."
)
"""Of sends and recvs on which nobody waited."""

SAME_BACKWARDS = (
    "Let all ranks synchronise the same backwards: decide which forward leaves no_sync() by what all ranks count alike, and "
    "not by the end of a rank's own loader."
)

OTHER_TAGS = (
    "Give a send and its recv the same tag; where tags are counted (steps, microbatches), let all ranks count the same things."
)


def advice(cause: Cause) -> str:
    """What to change."""
    return ADVICE.get(cause, "")
