"""When the buckets that DDP's reducer launched are over.

A callback for each bucket costs more than all the rest of its record: gloo's thread has to take the GIL for it in the middle of
backward.  It is not needed: a backward that has launched all buckets of a module waits for all of them before it returns.  So
what the reducer launches is held until then (its tensors are the reducer's own) and marked completed at once.  Where a backward
fails, leaves a bucket out, or takes longer than :data:`PATIENCE_NS` (it may never end), each gets its callback after all.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from desync.recorder import buckets, session
from desync.recorder.session import Session, quiet

PATIENCE_NS = 400_000_000
LOOK_S = 0.2
"""How often the patience is looked at; each look costs some 10 µs."""

SAMPLED_FIRST = 10
SAMPLED_EVERY = 32
"""The first backwards, and then each so many-th, are sampled: the first ten are those that torch's own logger measures."""

_now = time.monotonic_ns


def of(owner: Session) -> Launched:
    """What the reducers of a session's process have launched."""
    if Launched.instance is None or Launched.instance.session is not owner:
        Launched.instance = Launched(owner)
    return Launched.instance


class Launched:
    """The operations that reducers launched in backwards that have not ended."""

    instance: Launched | None = None

    def __init__(self, owner: Session) -> None:
        self.session = owner
        self._running: dict[int, None] = {}
        self._held: deque[tuple[Callable[[Any, int], None], Any, int, int]] = deque()
        self._looking = False
        self._count = 0
        self._sampling = False

    def samples(self) -> bool:
        """Whether the buckets of the backward that begins now call back one by one."""
        self._count += 1
        self._sampling = self._count <= SAMPLED_FIRST or self._count % SAMPLED_EVERY == 0
        return self._sampling

    def begins(self, serial: int) -> None:
        """A backward with this serial number begins."""
        self._running[serial] = None

    def hold(self, finish: Callable[[Any, int], None], result: Any, serial: int) -> None:
        """A reducer has launched an operation with this result; ``finish`` would have it call back."""
        if self._sampling or not self._running:
            finish(result, serial)  # without a backward: called by a way on which its end would not be seen
            return
        self._held.append((finish, result, serial, _now()))
        if not self._looking:
            self._look()

    def ends(self, serial: int, failed: bool) -> None:
        """A backward is over; backwards inside of others, or of other threads, say nothing about what is held."""
        self._running.pop(serial, None)
        if self._held and not self._running:
            self._let_go(over=not failed and buckets.all_launched())

    def _let_go(self, over: bool) -> None:
        completed = self.session.writer.completed
        while self._held:
            try:
                finish, result, serial, _ = self._held.popleft()
            except IndexError:
                return  # another thread was faster
            if over:
                completed(serial)
            else:
                finish(result, serial)

    def _look(self) -> None:
        """Begin to look for backwards that take long."""
        self._looking = True
        threading.Thread(target=self._watch, name="desync-backwards", daemon=True).start()

    def _watch(self) -> None:
        while session.current is self.session:
            time.sleep(LOOK_S)
            self._lose_patience()

    @quiet("seeing operations complete")
    def _lose_patience(self) -> None:
        try:
            oldest = self._held[0][3]
        except IndexError:
            return
        if _now() - oldest > PATIENCE_NS:
            self._let_go(over=False)
