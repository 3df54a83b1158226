"""What a scenario is: a program of this folder, how to run it, and the verdict that it must get."""

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
    also: tuple[tuple[Cause, tuple[int, ...]], ...] = ()
    """Faults besides the first, each with its own culprits, that must be told as faults of their own."""
    says: str | None = None
    """Words that the verdict's sentence must hold, where the cause alone does not tell such faults apart."""
    arguments: tuple[str, ...] = ()
    launch: tuple[str, ...] = ()
    """More options of torchrun."""
    exit_status: int = HANG_KILLED
    """Of ``desync watch --on-hang kill``."""
    may_hang: bool = False
    """Chance decides whether the ranks get stuck as well: a hang that desync ends is then as right as the expected status."""
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
