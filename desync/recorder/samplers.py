"""Which epoch a DistributedSampler is in when its passes begin: one whose ``set_epoch`` is never called repeats its order."""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

from desync.recorder import session as sessions
from desync.recorder.session import Session, quiet

PASSES = 3
"""So many of its first passes tell."""
MAX_SAMPLERS = 16


class Samplers:
    """The wrapper around the sampler's iteration."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._seen: WeakKeyDictionary[Any, tuple[int, list[int]]] = WeakKeyDictionary()
        self._count = 0

    def install(self) -> None:
        """Wrap the class."""
        from torch.utils.data.distributed import DistributedSampler

        original = DistributedSampler.__iter__

        @functools.wraps(original)
        def __iter__(sampler: Any) -> Any:  # noqa: N807 - it takes the place of one
            self._begins(sampler)
            return original(sampler)

        setattr(DistributedSampler, "__iter__", __iter__)  # noqa: B010 - an assignment would be a type error

    @quiet("looking at a DistributedSampler")
    def _begins(self, sampler: Any) -> None:
        if sessions.current is not self.session:
            return
        known = self._seen.get(sampler)
        if known is None:
            if self._count >= MAX_SAMPLERS:
                return
            self._count += 1
            known = self._seen[sampler] = (self._count, [])
        number, epochs = known
        if len(epochs) < PASSES:
            epochs.append(int(sampler.epoch))
            said = {"number": number, "name": type(sampler.dataset).__name__, "shuffle": bool(sampler.shuffle)}
            self.session.writer.intern("sampler", {**said, "epochs": epochs})
