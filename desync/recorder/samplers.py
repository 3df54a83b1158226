"""Which epoch a DistributedSampler is in when its passes begin: one whose ``set_epoch`` is never called repeats its order."""

from __future__ import annotations

import functools
from typing import Any
from weakref import ref

from desync.recorder import session as sessions
from desync.recorder.session import Session, quiet

PASSES = 3
"""So many of its first passes tell."""
MAX_SAMPLERS = 16


class Samplers:
    """The wrapper around the sampler's iteration."""

    def __init__(self, session: Session) -> None:
        self.session = session
        # By their ids, with a reference that says whose it is: the hash and the equality of a sampler are the job's code.
        self._seen: dict[int, tuple[ref[Any], int, list[int]]] = {}
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
        known = self._seen.get(id(sampler))
        if known is None or known[0]() is not sampler:
            if self._count >= MAX_SAMPLERS:
                return
            self._count += 1
            known = self._seen[id(sampler)] = (ref(sampler), self._count, [])
        _, number, epochs = known
        if len(epochs) < PASSES and (said := _said(sampler)) is not None:
            name, shuffle, epoch = said
            epochs.append(epoch)
            self.session.writer.intern("sampler", {"number": number, "name": name, "shuffle": shuffle, "epochs": epochs})


def _said(sampler: Any) -> tuple[str, bool, int] | None:
    """Its dataset's class, whether it shuffles, and its epoch; None where they cannot be asked for."""
    try:
        return type(sampler.dataset).__name__, bool(sampler.shuffle), int(sampler.epoch)
    except Exception:  # noqa: BLE001 - properties may do anything
        return None
