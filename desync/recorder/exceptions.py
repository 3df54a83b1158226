"""Exceptions as marks: uncaught ones, and those that a ``finally`` or ``except`` block holds back during communication."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from desync.journal.layout import RecordType
from desync.recorder import session as sessions
from desync.recorder.session import Session, quiet
from desync.recorder.sites import function_name, is_recorders, users_frames

MAX_MESSAGE = 4000
MAX_FRAMES = 30
MAX_NAME = 200
MAX_ARGUMENTS = 8
"""Of an exception, which tell it apart from others."""
_PLAIN = frozenset({type(None), bool, int, str})
_QUIET_TYPES = (StopIteration, StopAsyncIteration, GeneratorExit)

Raised = tuple[int, ...]

_arguments: Callable[[BaseException], tuple[Any, ...]] = BaseException.__dict__["args"].__get__
"""Those that Python itself keeps, whatever a class of the user's calls ``args``."""

_lately: deque[Raised] = deque(maxlen=16)
"""What tells the last exceptions apart, without keeping them (and all that their frames hold) alive."""


@quiet("recording exceptions")
def held_back(session: Session) -> None:
    """Record the exception that this thread is handling, unless that has been done."""
    error = sys.exc_info()[1]
    if error is None or isinstance(error, _QUIET_TYPES) or (isinstance(error, SystemExit) and _is_nothing(error.code)):
        return
    raised = _identity(error)
    if raised not in _lately:
        _lately.append(raised)
        record(session, error, uncaught=False)


def _is_nothing(status: object) -> bool:
    """Whether an exit status says nothing; asked only of types of Python's own, as others may raise."""
    return type(status) in _PLAIN and not status


@quiet("recording exceptions")
def passing(session: Session, error: BaseException) -> None:
    """Record that memory ran out under a forward or a backward: whoever catches that on one rank leaves out what others do.

    Other exceptions are left alone here: what is caught is no business of ours unless it keeps a rank from the others.
    """
    if is_out_of_memory(error):
        record(session, error, uncaught=False, passed=True)


def _identity(error: BaseException) -> Raised:
    """An id alone will not do: the next exception often lies where the last one was.

    Of its arguments, too, only the ids: their hash and their equality are the job's code.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code, line = (id(trace.tb_frame.f_code), trace.tb_lineno) if trace is not None else (0, 0)
    arguments = _arguments(error)[:MAX_ARGUMENTS]
    return id(error), id(type(error)), code, line, *map(id, arguments)


@quiet("recording exceptions")
def record(session: Session, error: BaseException, uncaught: bool, passed: bool = False, thread: str | None = None) -> None:
    """Record an exception with its message and last frames; ``thread`` names the one that it ended, if not the main one."""
    payload = {
        "type": _type_name(error),
        "message": _message(error, uncaught),
        "frames": _frames(error),
        "uncaught": uncaught,
        "out_of_memory": is_out_of_memory(error),
        "passed": passed,
        "thread": thread,
    }
    writer = session.writer
    # The same failure again (a retry in every step) must not fill the heap.
    failure = writer.intern("failure", payload, key=repr(payload))
    writer.mark(RecordType.EXCEPTION, name=failure, site=_site(session, error), thread=session.thread())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: torch's own type, Python's, or the messages of torch's allocators."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in _message(error, False) for words in _OUT_OF_MEMORY)


_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "not enough memory")


def _frames(error: BaseException) -> list[tuple[str, str, int]]:
    """The last frames, innermost first.  ``traceback`` would read the source files, which may lie on a slow disk."""
    found: deque[tuple[str, str, int]] = deque(maxlen=MAX_FRAMES)
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_recorders(code):
            found.appendleft((function_name(code), code.co_filename, trace.tb_lineno or 0))
        trace = trace.tb_next
    return list(found)


def _site(session: Session, error: BaseException) -> int:
    frames = users_frames(error.__traceback__)
    return session.writer.intern("site", frames, key=repr(frames)) if frames else 0


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException, uncaught: bool) -> str:
    """What the exception says.  Of one that the job handles nobody may ask for more than is there.

    Its ``__str__`` may be the job's own, and its arguments may be lists of millions or tensors on a device: to print them
    takes long, while the other ranks wait.
    """
    try:
        if uncaught or (type(error).__str__ in _PLAIN_STR and all(map(_is_small, _arguments(error)))):
            return str(error)[:MAX_MESSAGE]
        return ", ".join(map(_said, _arguments(error)[:MAX_ARGUMENTS]))[:MAX_MESSAGE]
    except Exception as broken:  # noqa: BLE001 - __str__ of a user's exception may do anything
        return f"(its message cannot be had: {type(broken).__name__})"


_PLAIN_STR = frozenset(kind.__str__ for kind in (BaseException, OSError, KeyError, ImportError, SyntaxError, UnicodeError))
"""Python's own ways to print an exception."""
_SMALL = (str, int, float, bool, type(None))


def _is_small(argument: object) -> bool:
    return type(argument) in _SMALL and (not isinstance(argument, int) or abs(argument) < 1 << 64)


def _said(argument: object) -> str:
    if type(argument) is str:
        return argument[:MAX_MESSAGE]
    return str(argument) if _is_small(argument) else f"<{type(argument).__name__}>"


def install() -> None:
    """Chain ourselves before the hooks for uncaught exceptions of the interpreter and of threads."""
    import threading

    main_hook, thread_hook = sys.excepthook, threading.excepthook

    def on_main(kind: Any, error: Any, trace: Any) -> None:
        _uncaught(error)
        main_hook(kind, error, trace)

    def on_thread(arguments: Any) -> None:
        if sessions.current is not None and isinstance(arguments.exc_value, Exception):
            record(sessions.current, arguments.exc_value, uncaught=True, thread=_thread_name(arguments.thread))
        thread_hook(arguments)

    sys.excepthook = on_main
    threading.excepthook = on_thread


def _thread_name(thread: Any) -> str:
    try:
        return str(thread.name or "of no name")[:MAX_NAME]
    except Exception:  # noqa: BLE001 - there may be no thread, and its class may be the user's
        return "of no name"


@quiet("watching child processes")
def watch_processes() -> None:
    """See what ``multiprocessing`` catches itself: it prints an exception of a child without asking ``sys.excepthook``."""
    import multiprocessing.process  # torch has imported it already

    process: Any = multiprocessing.process.BaseProcess
    original = process.run

    @functools.wraps(original)
    def run(child: Any) -> None:
        try:
            original(child)
        except BaseException as error:
            _uncaught(error)
            raise

    process.run = run


@quiet("recording exceptions")
def _uncaught(error: Any) -> None:
    session = sessions.current
    if session is not None and isinstance(error, BaseException) and not isinstance(error, SystemExit):
        record(session, error, uncaught=True)
        session.exit_code = exit_status(error)
        session.exit_site, session.exit_progress = 0, None


def exit_status(error: BaseException) -> int:
    """The status with which the interpreter ends after an uncaught exception; negative: by that signal, sent to itself."""
    import signal

    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
