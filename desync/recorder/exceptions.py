"""Exceptions as marks: uncaught ones, and those that a ``finally`` or ``except`` block holds back during communication."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from desync.journal.layout import RecordType
from desync.recorder.session import Session, quiet
from desync.recorder.sites import walk

MAX_MESSAGE = 4000
MAX_FRAMES = 30
_QUIET_TYPES = (StopIteration, StopAsyncIteration, GeneratorExit)

_last_held = 0


def held_back(session: Session) -> None:
    """Record the exception that this thread is handling, once; only its id is kept, never the object with its frames."""
    global _last_held
    error = sys.exc_info()[1]
    if error is None or id(error) == _last_held or isinstance(error, _QUIET_TYPES):
        return
    _last_held = id(error)
    record(session, error, uncaught=False)


@quiet("recording exceptions")
def record(session: Session, error: BaseException, uncaught: bool) -> None:
    """Record an exception with its message and last frames."""
    frames = [
        (frame.name, frame.filename, frame.lineno or 0) for frame in reversed(traceback.extract_tb(error.__traceback__))
    ]
    payload = {
        "type": _type_name(error),
        "message": _message(error),
        "frames": frames[:MAX_FRAMES],
        "uncaught": uncaught,
        "out_of_memory": is_out_of_memory(error),
    }
    writer = session.writer
    writer.mark(
        RecordType.EXCEPTION, name=writer.intern("failure", payload), site=_site(session, error), thread=session.thread()
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: torch's own type, Python's, or the messages of torch's allocators."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error)[:MAX_MESSAGE]
    return isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)


_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "not enough memory")


def _site(session: Session, error: BaseException) -> int:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frames, _ = walk(trace.tb_frame if trace is not None else None)
    if trace is not None and frames and frames[0][1] == trace.tb_frame.f_code.co_filename:
        # The frame has moved on since (it is handling the exception); the traceback knows the line that raised.
        frames[0] = (frames[0][0], frames[0][1], trace.tb_lineno)
    return session.writer.intern("site", frames, key=repr(frames)) if frames else 0


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - __str__ of a user's exception may do anything
        return f"(its message cannot be had: {type(broken).__name__})"
    return text[:MAX_MESSAGE]


def install(session: Session) -> None:
    """Chain ourselves before the hooks for uncaught exceptions of the interpreter and of threads."""
    import threading

    main_hook, thread_hook = sys.excepthook, threading.excepthook

    def on_main(kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, BaseException) and not isinstance(error, SystemExit):
            record(session, error, uncaught=True)
            session.exit_code = 1
        main_hook(kind, error, trace)

    def on_thread(arguments: Any) -> None:
        if isinstance(arguments.exc_value, Exception):
            record(session, arguments.exc_value, uncaught=True)
        thread_hook(arguments)

    sys.excepthook = on_main
    threading.excepthook = on_thread
