"""When the communication of an operation is over, learnt without keeping its tensors alive.

Most of gloo's collectives have a future that calls back from gloo's own thread.  Its sends, receives and reduce_scatters have
none; for them, and for calls that wait themselves (``async_op=False``), the return of ``Work.wait`` is what can be seen, and
until then their ``Work`` is kept, as torch itself demands of the caller.  A handle that nobody else holds any more is let
go of: nobody will wait on it.  Works of other backends are never touched.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from desync.recorder.operators import Operator
from desync.recorder.session import Session, quiet

PART = "seeing operations complete"
MAX_HANDLES = 256
"""Handles kept of operations on which nobody has waited."""
OWN_REFERENCES = 3
"""To a kept handle, as ``sys.getrefcount`` counts where only the recorder holds it: the table's, a variable's, the call's."""


def watcher(session: Session, operator: Operator) -> Callable[[Any, int], None]:
    """The function that is given a result and its serial number and sees to it that the completion is recorded."""
    if operator.blocks:
        return lambda _result, serial: session.writer.completed(serial)
    return waited(session) if operator.kind.value == "p2p" else _called_back(session)


def _called_back(session: Session) -> Callable[[Any, int], None]:
    from torch._C._distributed_c10d import Work

    unbox = Work.unbox
    completed = session.writer.completed
    keep = waited(session)
    has_future = True

    def finish(result: Any, serial: int) -> None:
        nonlocal has_future

        def done(future: Any) -> None:
            failed = False
            try:
                future.value()
            except Exception:  # noqa: BLE001 - whatever it was, the operation failed; its error reaches the job by wait()
                failed = True
            try:
                completed(serial, failed)
            except Exception as error:  # noqa: BLE001 - torch would print it
                session.failed(PART, error)

        if has_future:
            try:
                unbox(result[-1] if type(result) is tuple else result).get_future().add_done_callback(done)
                return
            except RuntimeError:
                has_future = False  # as all works of gloo's reduce_scatter
            except Exception as error:  # noqa: BLE001 - the job comes first
                session.writer.completion_unknown(serial)
                session.failed(PART, error)
                return
        keep(result, serial)

    return finish


def waited(session: Session) -> Callable[[Any, int], None]:
    """The function that is given the result of a call on which somebody will wait, and records the completion then."""
    from torch._C._distributed_c10d import Work

    unbox = Work.unbox

    def finish(result: Any, serial: int) -> None:
        try:
            work = unbox(result[-1] if type(result) is tuple else result)
            _Handles.of(session).keep(work, serial)
        except Exception as error:  # noqa: BLE001 - the job comes first
            session.writer.completion_unknown(serial)
            session.failed(PART, error)

    return finish


class _Handles:
    """The operations on which nobody has waited yet."""

    _instance: _Handles | None = None

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[int, tuple[Any, int, int]] = {}
        """Handle, serial number and thread, by the handle's id."""
        self._wrap_wait()

    @classmethod
    def of(cls, session: Session) -> _Handles:
        if cls._instance is None or cls._instance._session is not session:
            cls._instance = cls(session)
        return cls._instance

    def keep(self, work: Any, serial: int) -> None:
        self._let_go_of_one()
        # While the handle is kept, torch gives the same Python object for it everywhere, so that its id finds it again.
        self._kept[id(work)] = (work, serial, get_ident())

    def _let_go_of_one(self) -> None:
        """Look at the oldest handle: drop it if nobody else holds it (or there are too many), else let it go last.

        One of another thread may be on its way to whoever called: then nobody holds it yet.
        """
        oldest = next(iter(self._kept), None)
        entry = self._kept.pop(oldest, None) if oldest is not None else None
        if oldest is None or entry is None:
            return  # there is none, or another thread has just waited on it
        work, serial, thread = entry
        if len(self._kept) >= MAX_HANDLES or (thread == get_ident() and sys.getrefcount(work) <= OWN_REFERENCES):
            self._session.writer.completion_unknown(serial)
        else:
            self._kept[oldest] = entry

    def _wrap_wait(self) -> None:
        from torch._C._distributed_c10d import Work

        original, kept = Work.wait, self._kept

        @functools.wraps(original)
        def wait(work: Any, *arguments: Any, **options: Any) -> Any:
            entry = kept.get(id(work)) if kept else None
            if entry is not None:
                self._begun(entry[1])
            try:
                result = original(work, *arguments, **options)
            except BaseException:
                if entry is not None:
                    self._over(work, entry[1], failed=True)
                raise
            if entry is not None:
                self._over(work, entry[1], failed=False)
            return result

        setattr(Work, "wait", wait)  # noqa: B010 - an assignment would be a type error

    @quiet(PART)
    def _begun(self, serial: int) -> None:
        """Record that somebody waits."""
        self._session.writer.awaited(serial)

    @quiet(PART)
    def _over(self, work: Any, serial: int, failed: bool) -> None:
        """Record that an operation is over, unless another thread that waited on it too was faster."""
        if self._kept.pop(id(work), None) is not None:
            self._session.writer.completed(serial, failed)
