"""Training steps of a DDP module, cut out of a rank's records.

What the records hold of a step: forward (entered, left), backward (entered, left), each bucket's all_reduce (launched, and for
some steps completed), and the optimizer's step.  That a single gradient is ready is not recorded; that the last one of a bucket
is, shows in the bucket's launch.  So the end of the backward computation is taken to be the return of the last launch, and what
follows until backward returns, waiting and copying back, is the tail that nothing hides.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from desync.model import DdpModule, Mark, MarkKind, Operation, Trace

BUCKET = re.compile(r"DDP bucket (\d+)(?: of ([^:]+))?(?::|$)")
"""A bucket's label: its number, and the module's name unless it is the rank's first module."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One bucket's all_reduce."""

    index: int
    operation: Operation

    @property
    def entered(self) -> int:
        """When it was launched (ns)."""
        return self.operation.entered or 0


@dataclass(frozen=True, slots=True)
class Step:
    """One forward and backward that synchronised; times in nanoseconds since the Unix epoch."""

    rank: int
    number: int
    """Which of the rank's backward passes it is, from 1."""
    forward: Mark
    backward: Mark
    launches: tuple[Launch, ...]
    stepped: int | None
    """When the optimizer had stepped."""

    @property
    def forward_end(self) -> int:
        """When forward returned."""
        return self.forward.left or self.forward.time

    @property
    def launched_first(self) -> int:
        """When communication began."""
        return min(launch.entered for launch in self.launches)

    @property
    def compute_end(self) -> int:
        """When the last bucket had been launched."""
        return max(launch.operation.returned or launch.entered for launch in self.launches)

    @property
    def backward_end(self) -> int:
        """When backward returned."""
        return self.backward.left or 0

    @property
    def timed(self) -> bool:
        """Whether each bucket was seen to complete on its own, and not only with the whole backward."""
        return self.backward.value == 1 and all(launch.operation.completed for launch in self.launches)

    @property
    def forward_ns(self) -> int:
        """Duration of forward."""
        return self.forward_end - self.forward.time

    @property
    def compute_ns(self) -> int:
        """From the end of forward until the last gradient was ready."""
        return self.compute_end - self.forward_end

    @property
    def communication_ns(self) -> int:
        """From the first launch until backward returned."""
        return self.backward_end - self.launched_first

    @property
    def overlap_ns(self) -> int:
        """Communication during the backward computation."""
        return self.compute_end - self.launched_first

    @property
    def tail_ns(self) -> int:
        """Communication that nothing hides."""
        return self.backward_end - self.compute_end


def steps(trace: Trace, module: DdpModule, most: int) -> list[Step]:
    """The last ``most`` finished steps of a module on a rank, oldest first."""
    backwards = [mark for mark in trace.marks if mark.kind is MarkKind.BACKWARD]
    finished = [(number, mark) for number, mark in enumerate(backwards) if mark.left is not None]
    before = trace.progress.backwards - len(backwards)
    forwards = [mark for mark in trace.marks if mark.kind is MarkKind.FORWARD and mark.name == module.name]
    stepped = [mark.time for mark in trace.marks if mark.kind is MarkKind.STEP]
    begun = [mark.time for mark in forwards]
    found: list[Step] = []
    for number, backward in reversed(finished):
        at = bisect_right(begun, backward.time) - 1
        launches = tuple(_launches(trace, module, backward))
        if at < 0 or not launches:
            continue
        next_forward = begun[at + 1] if at + 1 < len(begun) else None
        optimizer = _first_after(stepped, backward.left or 0, next_forward)
        found.append(Step(trace.rank, before + number + 1, forwards[at], backward, launches, optimizer))
        if len(found) == most:
            break
    return found[::-1]


def _first_after(times: Sequence[int], low: int, high: int | None) -> int | None:
    at = bisect_left(times, low)
    return times[at] if at < len(times) and (high is None or times[at] < high) else None


def _launches(trace: Trace, module: DdpModule, backward: Mark) -> Iterator[Launch]:
    """The module's buckets that were launched in a backward."""
    table = trace.operations
    low = bisect_left(table.entered, backward.time)
    high = bisect_right(table.entered, backward.left or backward.time)
    for index in range(low, high):
        label = table.calls[table.call[index]].bucket
        match = BUCKET.match(label) if label else None
        if match and (match[2] or trace.ddp[0].name) == module.name:
            yield Launch(int(match[1]), table.row(trace.rank, index))
