"""Programs in which ranks end, hang in their exit, run out of memory or stand still, and what must be said of each."""

from __future__ import annotations

import signal

from desync.model import Cause, Status
from fault_scenarios.scenario import OutsideAction, Scenario

STANDSTILLS = (
    Scenario(
        name="exit_in_the_middle",
        program="exit_in_the_middle.py",
        shows="a rank ends with status 0 in the middle of training",
        world_size=3,
        status=Status.CRASH,
        cause=Cause.EXITED_EARLY,
        culprits=(2,),
        call_site="sys.exit(0)",
        exit_status=1,
        hang_after_s=10,
    ),
    Scenario(
        name="caught_out_of_memory",
        program="caught_out_of_memory.py",
        shows="a rank runs out of memory, catches it and skips the batch",
        world_size=3,
        status=Status.HANG,
        cause=Cause.OUT_OF_MEMORY,
        culprits=(1,),
        call_site="scores = self.query(tokens)",
        says="left out 1 backward",
    ),
    Scenario(
        name="hanging_exit",
        program="hanging_exit.py",
        shows="the work is done, but a thread keeps one rank from ending",
        world_size=3,
        status=Status.HANG,
        cause=Cause.TEARDOWN,
        culprits=(1,),
        call_site="lines.get()",
        says="Python waits for its threads (writer is in write",
    ),
    Scenario(
        name="stopped",
        program="killed.py",
        shows="a sound program of which one rank is stopped from outside",
        world_size=3,
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        culprits=(1,),
        says="stopped",
        outside_action=OutsideAction(signal.SIGSTOP, rank=1),
    ),
    Scenario(
        name="abandoned_lock",
        program="abandoned_lock.py",
        shows="a rank waits for a lock whose owner has died",
        world_size=3,
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        culprits=(1,),
        call_site="with weights:",
        says="after its thread checkpoints raised OSError: no space left on device",
    ),
    Scenario(
        name="full_queue",
        program="full_queue.py",
        shows="a rank waits for room in a queue that nobody empties",
        world_size=3,
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        culprits=(1,),
        call_site="samples.put(",
        says="waits for room in a full queue",
    ),
    Scenario(
        name="silent_pipe",
        program="silent_pipe.py",
        shows="a rank reads from a pipe into which nobody writes any more",
        world_size=3,
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        culprits=(1,),
        call_site="os.read(labels, 1)",
        says="waits for a pipe",
    ),
    Scenario(
        name="communication_stalled",
        program="communication_stalled.py",
        shows="all ranks are in one operation, and the network loses all that they send",
        world_size=3,
        status=Status.HANG,
        cause=Cause.COMMUNICATION_STALLED,
        says="All of ranks 0-2 are in all_reduce #4",
    ),
)
