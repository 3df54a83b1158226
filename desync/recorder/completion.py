"""When the communication of an operation is over, learnt without keeping its tensors alive.

Gloo's collectives have a future that calls back from gloo's own thread.  Its sends and receives have none; for them the return
of ``Work.wait`` is what can be seen, and until then their ``Work`` is kept: gloo's tensors are in host memory, and torch itself
demands that the caller keeps the handle until it has waited.  Works of other backends are never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from desync.recorder.operators import Operator
from desync.recorder.session import Session

PART = "seeing operations complete"
MAX_HANDLES = 256
"""Handles kept for sends and receives on which nobody has waited."""


def watcher(session: Session, operator: Operator) -> Callable[[Any, int], None]:
    """The function that is given a result and its serial number and sees to it that the completion is recorded."""
    if operator.blocks:
        return lambda _result, serial: session.writer.completed(serial)
    return _waited(session) if operator.kind.value == "p2p" else _called_back(session)


def _called_back(session: Session) -> Callable[[Any, int], None]:
    from torch._C._distributed_c10d import Work

    unbox = Work.unbox
    completed = session.writer.completed

    def finish(result: Any, serial: int) -> None:
        def done(future: Any) -> None:
            try:
                future.value()
            except Exception:  # noqa: BLE001 - whatever it was, the operation failed; its error reaches the job by wait()
                completed(serial, failed=True)
            else:
                completed(serial)

        try:
            work = result[-1] if type(result) is tuple else result
            unbox(work).get_future().add_done_callback(done)
        except Exception as error:  # noqa: BLE001 - the job comes first
            session.failed(PART, error)

    return finish


def _waited(session: Session) -> Callable[[Any, int], None]:
    from torch._C._distributed_c10d import Work

    unbox = Work.unbox

    def finish(result: Any, serial: int) -> None:
        try:
            _Handles.of(session).keep(unbox(result), serial)
        except Exception as error:  # noqa: BLE001 - the job comes first
            session.failed(PART, error)

    return finish


class _Handles:
    """The sends and receives on which nobody has waited yet."""

    _instance: _Handles | None = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[int, tuple[Any, int]] = {}
        self._wrap_wait()

    @classmethod
    def of(cls, session: Session) -> _Handles:
        if cls._instance is None:
            cls._instance = cls(session)
        return cls._instance

    def keep(self, work: Any, serial: int) -> None:
        if len(self._kept) >= MAX_HANDLES:
            self._kept.pop(next(iter(self._kept)), None)
        # While the handle is kept, torch gives the same Python object for it everywhere, so that its id finds it again.
        self._kept[id(work)] = (work, serial)

    def _wrap_wait(self) -> None:
        from torch._C._distributed_c10d import Work

        original, kept, writer = Work.wait, self._kept, self._session.writer

        def wait(work: Any, *arguments: Any, **options: Any) -> Any:
            entry = kept.get(id(work)) if kept else None
            try:
                result = original(work, *arguments, **options)
            except BaseException:
                if entry is not None and _taken(kept, work):
                    writer.completed(entry[1], failed=True)
                raise
            if entry is not None and _taken(kept, work):
                writer.completed(entry[1])
            return result

        setattr(Work, "wait", wait)  # noqa: B010 - an assignment would be a type error


def _taken(kept: dict[int, tuple[Any, int]], work: Any) -> bool:
    """Whether it was this thread that took the handle out."""
    return kept.pop(id(work), None) is not None
