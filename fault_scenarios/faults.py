"""Programs in which something is wrong, and what must be said of each."""

from __future__ import annotations

import signal

from desync.model import Cause, Status
from fault_scenarios.scenario import OutsideAction, Scenario

FAULTS = (
    Scenario(
        name="uneven_data",
        program="uneven_data.py",
        shows="one rank's data ends a batch before the others'",
        world_size=4,
        status=Status.HANG,
        cause=Cause.UNEVEN_INPUTS,
        culprits=(2,),
        call_site="dist.barrier()",
    ),
    Scenario(
        name="rank_only_branch",
        program="rank_only_branch.py",
        shows="a checkpoint under `if rank == 0` that needs a collective",
        world_size=4,
        status=Status.HANG,
        cause=Cause.RANK_ONLY_COLLECTIVE,
        culprits=(0,),
        call_site="dist.all_gather(states, own)",
    ),
    Scenario(
        name="unused_parameters",
        program="unused_parameters.py",
        shows="a head of the model has no share in one rank's loss, in the last step",
        world_size=3,
        status=Status.HANG,
        cause=Cause.UNUSED_PARAMETERS,
        culprits=(1,),
        call_site="dist.barrier()",
    ),
    Scenario(
        name="unused_parameters_raises",
        program="unused_parameters.py",
        shows="the same in the middle of training: DDP raises in that rank's next forward",
        world_size=3,
        arguments=("--batch", "3"),
        status=Status.CRASH,
        cause=Cause.UNUSED_PARAMETERS,
        culprits=(1,),
        call_site="price, rating = model(inputs)",
        exit_status=1,
    ),
    Scenario(
        name="out_of_memory",
        program="out_of_memory.py",
        shows="a rank runs out of memory on one long example and ends",
        world_size=3,
        status=Status.CRASH,
        cause=Cause.OUT_OF_MEMORY,
        culprits=(1,),
        call_site="scores = self.query(tokens)",
        exit_status=1,
    ),
    Scenario(
        name="killed",
        program="killed.py",
        shows="a sound program of which one rank is ended by a signal from outside",
        world_size=3,
        status=Status.CRASH,
        cause=Cause.KILLED,
        culprits=(1,),
        outside_action=OutsideAction(signal.SIGKILL, rank=1),
        exit_status=1,
    ),
    Scenario(
        name="shape_mismatch",
        program="shape_mismatch.py",
        shows="a rank adds up a tensor of another length; gloo aborts",
        world_size=4,
        status=Status.CRASH,
        cause=Cause.ARGUMENT_MISMATCH,
        culprits=(3,),
        call_site="dist.all_reduce(counts)",
        exit_status=1,
    ),
    Scenario(
        name="stuck_loader",
        program="stuck_loader.py",
        shows="a rank's data set waits for ever for a lock that it holds itself",
        world_size=3,
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        culprits=(1,),
        call_site="with self.connection:",
    ),
)
