"""Starts desync's recorder in every Python process of a watched job, and then what this file hides.

This folder stands first on PYTHONPATH, so Python imports this file at start-up: every Python that the job calls, a system's
tool of another age included.  So it keeps to what each of them can read, and leaves those alone for which torch is not made.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _arm():  # type: () -> None
    try:
        from desync_at_startup import arm  # type: ignore[import-not-found]  # beside this file, which is no package
    except ImportError:
        return  # half an installation: `desync watch` says that no rank has reported
    arm()


def _run_hidden():  # type: () -> None
    """Import the ``sitecustomize`` that would have been found without this one, if there is one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    if sys.version_info < (3, 5):
        _run_hidden_of_old(others)
        return
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    import importlib.util  # only here: it takes longer to import than all the rest

    module = importlib.util.module_from_spec(spec)
    # It must find itself under its name, as if it had been imported first.
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _run_hidden_of_old(others):  # type: (list[str]) -> None
    """The same with what Python 2 has for it."""
    import imp

    try:
        found = imp.find_module("sitecustomize", others)
    except ImportError:
        return
    imp.load_module("sitecustomize", *found)  # type: ignore[arg-type]  # what one of them gives the other takes


if sys.version_info >= (3, 10):
    _arm()
_run_hidden()
