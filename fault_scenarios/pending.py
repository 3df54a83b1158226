"""Scenarios that are not yet told right: what must be said of each is what ``docs/causes`` demands, not what is said today."""

from __future__ import annotations

import signal

from desync.model import Cause, Status
from fault_scenarios.scenario import OutsideAction, Scenario

PENDING: tuple[Scenario, ...] = (
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
    ),
    Scenario(
        name="stopped",
        program="killed.py",
        shows="a sound program of which one rank is stopped from outside",
        world_size=3,
        status=Status.HANG,
        cause=Cause.STALLED_RANK,
        culprits=(1,),
        outside_action=OutsideAction(signal.SIGSTOP, rank=1),
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
        timeout_s=60,
    ),
)
"""No part of ``SCENARIOS``, so that ``--all`` runs what holds today."""
