"""Says why a distributed PyTorch job hangs.

A program can tell desync about its own progress with :func:`mark`; everything else works without touching the program.
"""

from __future__ import annotations

import sys

__all__ = ["__version__", "mark"]

__version__ = "0.1.0"


def mark(name: str, value: str | int | None = None) -> None:
    """Record a point of progress of this rank, such as ``desync.mark("stop", value=int(should_stop))``.

    Values of the same mark are compared across ranks: a decision that differed is the best evidence there is.  Outside
    ``desync watch`` this does nothing.  It never raises, whatever it is given.
    """
    marks = sys.modules.get("desync.recorder.marks")
    if marks is not None:
        import contextlib  # not at the top: every Python process of a watched job imports this module

        with contextlib.suppress(Exception):  # recording must never end the training that it records
            marks.user_mark(name, value)
