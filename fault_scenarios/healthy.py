"""Programs in which nothing is wrong, and which look like one in which something is."""

from __future__ import annotations

from desync.model import Cause, Status
from fault_scenarios.scenario import Scenario

HEALTHY = (
    Scenario(
        name="healthy_ddp",
        program="healthy_ddp.py",
        shows="DDP training as it should be",
        world_size=2,
        status=Status.HEALTHY,
        cause=Cause.NONE,
        exit_status=0,
    ),
    Scenario(
        name="healthy_accumulation",
        program="healthy_accumulation.py",
        shows="gradient accumulation with `no_sync`, the same on all ranks",
        world_size=2,
        status=Status.HEALTHY,
        cause=Cause.NONE,
        exit_status=0,
    ),
    Scenario(
        name="healthy_slow_rank",
        program="healthy_slow_rank.py",
        shows="a rank that lets the other wait for three seconds, but comes",
        world_size=2,
        status=Status.HEALTHY,
        cause=Cause.NONE,
        exit_status=0,
        hang_after_s=10,
    ),
)
