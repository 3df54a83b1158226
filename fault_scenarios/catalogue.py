"""The programs of this folder, and what ``desync watch`` must say of each.

The expectations hold for gloo on CPU.  On NCCL a shape mismatch does not abort; everything else should be the same.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from desync.model import Cause, Status

FOLDER = Path(__file__).resolve().parent

READY = r"rank (\d+) is ready \(pid (\d+)\)"
"""What a rank prints when the outside action may be done to it: its rank and its process id."""

HANG_KILLED = 3
"""Exit status of ``desync watch --on-hang kill`` when it has ended a hung job."""


@dataclass(frozen=True, slots=True)
class OutsideAction:
    """A signal that is sent to a rank, once it has announced that it is ready (:data:`READY`)."""

    signal: signal.Signals
    rank: int

    def __str__(self) -> str:
        return f"{self.signal.name} to rank {self.rank}, once it is ready"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program, how to run it, and the verdict that it must get."""

    name: str
    program: str
    """File name in this folder."""
    shows: str
    """One line: what the program does wrong (or right)."""
    world_size: int
    status: Status
    cause: Cause
    culprits: tuple[int, ...] = ()
    call_site: str | None = None
    """Text of the one line of the program that the report must name for the culprit; None where no line is at fault."""
    arguments: tuple[str, ...] = ()
    exit_status: int = HANG_KILLED
    """Of ``desync watch --on-hang kill``."""
    outside_action: OutsideAction | None = None
    hang_after_s: float = 3
    """How long an absent rank that is alive must stand still before it counts as stuck (``--hang-after``)."""
    timeout_s: float = 120
    """How long the whole run may take, on a slow machine."""

    @property
    def path(self) -> Path:
        """The program."""
        return FOLDER / self.program

    def call_site_line(self) -> int | None:
        """Number of the line that holds ``call_site``, from 1.  Raises ValueError unless exactly one line holds it."""
        if self.call_site is None:
            return None
        lines = self.path.read_text(encoding="utf-8").splitlines()
        (number,) = (number for number, line in enumerate(lines, start=1) if self.call_site in line)
        return number


_FAULTS = (
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

_HEALTHY = (
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

SCENARIOS = (*_FAULTS, *_HEALTHY)
"""All of them, broken ones first."""
