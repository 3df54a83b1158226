"""Call sites: where in the user's code an operation was called, found at the cost of a walk over the frames.

The chain of (code object, instruction) identifies the whole stack, so that equal stacks are resolved once.  The cache keeps the
code objects alive: their ``id`` is a part of the key and must not be given to another one.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from types import CodeType, FrameType, TracebackType

from desync.journal.writer import JournalWriter

MAX_DEPTH = 40
MAX_USER_FRAMES = 12
MAX_SITES = 20_000
"""More different stacks than this (generated code) are not kept; they would only fill the memory."""

_getframe = sys._getframe


class Sites:
    """Call sites of one process, by their number in the journal's heap."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._known: dict[tuple[int, ...], tuple[int, tuple[CodeType, ...]]] = {}

    def here(self, depth: int, fallback: int = 0) -> int:
        """Number of the call site ``depth`` frames out; ``fallback`` where no frame of the user is on the stack.

        Threads of autograd have no Python frames of the user: what they launch belongs to the last backward.
        """
        try:
            frame: FrameType | None = _getframe(depth)
        except ValueError:
            return fallback
        return self.at(frame) or fallback

    def at(self, frame: FrameType | None) -> int:
        """Number of the call site of the stack that ends in ``frame``; 0 where no frame of the user is on it."""
        first = frame
        key: list[int] = []
        add = key.append
        left = MAX_DEPTH
        while frame is not None and left:
            add(id(frame.f_code))
            add(frame.f_lasti)
            frame = frame.f_back
            left -= 1
        found = self._known.get(tuple(key))
        if found is None:
            found = self._resolve(first, tuple(key))
        return found[0]

    def _resolve(self, frame: FrameType | None, key: tuple[int, ...]) -> tuple[int, tuple[CodeType, ...]]:
        frames, codes = walk(frame)
        # -1: there is one, but no room for it; it must not be taken for another.
        number = self._writer.intern("site", frames, key=repr(frames)) or -1 if frames else 0
        if (number >= 0 or self._writer.full) and len(self._known) < MAX_SITES:
            self._known[key] = (number, codes)
        return number, codes


def walk(frame: FrameType | None) -> tuple[list[tuple[str, str, int]], tuple[CodeType, ...]]:
    """The user's frames as (function, file, line), innermost first, and all code objects on the way.

    The user's are those outside torch, the standard library and desync; frames of other installed packages come
    into it only where nothing else is left, and those of torch only in a thread that torch itself started in Python.
    """
    own: list[tuple[str, str, int]] = []
    installed: list[tuple[str, str, int]] = []
    torchs: list[tuple[str, str, int]] = []
    codes: list[CodeType] = []
    left = MAX_DEPTH
    while frame is not None and left:
        code = frame.f_code
        codes.append(code)
        origin = _origin(code.co_filename)
        entry = (function_name(code), code.co_filename, frame.f_lineno or 0)
        if origin != "machinery":
            (own if origin == "user" else installed).append(entry)
        elif code.co_filename.startswith(_torch_folder()) and not code.co_filename.endswith(_C10D):
            torchs.append(entry)
        frame = frame.f_back
        left -= 1
    if codes and codes[-1] is not _THREAD:
        torchs.clear()  # one of autograd's threads, or the main one: what it launches belongs to the last backward
    return (own or installed or torchs)[:MAX_USER_FRAMES], tuple(codes)


def function_name(code: CodeType) -> str:
    """A function's qualified name where this Python knows it."""
    return code.co_qualname if sys.version_info >= (3, 11) else code.co_name


def is_recorders(code: CodeType) -> bool:
    """Whether it is code of desync itself."""
    return code.co_filename.startswith(_PACKAGE)


def users_frames(trace: TracebackType | None) -> list[tuple[str, str, int]]:
    """The user's frames on the way to where an exception was raised, as :func:`walk` gives them.

    Frames that are still running have moved on since; the traceback knows the lines of the moment.
    """
    own: list[tuple[str, str, int]] = []
    installed: list[tuple[str, str, int]] = []
    outermost = trace.tb_frame.f_back if trace is not None else None
    while trace is not None:
        code = trace.tb_frame.f_code
        origin = _origin(code.co_filename)
        if origin != "machinery":
            (own if origin == "user" else installed).append((function_name(code), code.co_filename, trace.tb_lineno or 0))
        trace = trace.tb_next
    callers, _ = walk(outermost)
    return ([*reversed(own or installed), *callers])[:MAX_USER_FRAMES]


def of_others(trace: TracebackType | None) -> bool:
    """Whether an exception was raised by code that is neither the recorder's nor torch's nor the standard library's.

    Special methods of the job's objects (``__str__``, ``__hash__``) do not count: the recorder's own doing has called them.
    """
    while trace is not None:
        code = trace.tb_frame.f_code
        if _origin(code.co_filename) != "machinery":
            return not (code.co_name.startswith("__") and code.co_name.endswith("__")) or code.co_name == "__call__"
        trace = trace.tb_next
    return False


_THREAD = getattr(threading.Thread, "_bootstrap").__code__  # noqa: B009 - not in the type's description
"""What every thread that Python started has at its bottom, and none that C++ started."""
_C10D = ("distributed_c10d.py", "c10d_logger.py")
"""Where the called function itself stands, which the operation names already."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = tuple(
    os.path.abspath(path) + os.sep for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if path
)
_SCRIPTS = sysconfig.get_path("scripts")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def _torch_folder() -> str:
    spec = getattr(sys.modules.get("torch"), "__file__", None)
    return os.path.dirname(spec) + os.sep if spec else f"{os.sep}torch{os.sep}"


_origins: dict[str, str] = {}
MAX_ORIGINS = 20_000
"""Files (of generated code) beyond this begin the table anew."""


def _origin(file: str) -> str:
    """One of "user", "installed" (another package) or "machinery" (torch, the standard library, desync)."""
    origin = _origins.get(file)
    if origin is None:
        if len(_origins) >= MAX_ORIGINS:
            _origins.clear()
        origin = _origins[file] = _find_origin(file)
    return origin


def _find_origin(file: str) -> str:
    if file.startswith(("<frozen", "<eval_with_key>")) or not file:
        return "machinery"
    path = _absolute(file)
    if path.startswith((_PACKAGE, _torch_folder())) or _is_compiled(path):
        return "machinery"
    if any(part in path for part in _INSTALLED):
        return "machinery" if f"{os.sep}torch{os.sep}" in path else "installed"
    if path.startswith(_STDLIB):
        return "machinery"
    # Command line tools (torchrun, accelerate) live beside the interpreter and are not the user's.
    return "installed" if os.path.dirname(path) == _SCRIPTS else "user"


def _absolute(file: str) -> str:
    try:
        return file if file.startswith("<") else os.path.abspath(file)
    except OSError:
        return file  # the working directory was removed


def _is_compiled(path: str) -> bool:
    """Whether torch.compile's inductor wrote the file."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return f"{os.sep}torchinductor_" in path or bool(cache and path.startswith(os.path.abspath(cache) + os.sep))
