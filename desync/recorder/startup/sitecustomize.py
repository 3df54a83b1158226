"""Starts desync's recorder in every Python process of a watched job.

This folder stands first on PYTHONPATH, so Python imports this file at start-up.  It arms the recorder, which does nothing until
``torch.distributed`` is imported, and then runs the ``sitecustomize`` that it hides, if there is one.
"""

import os
import sys


def _arm() -> None:
    try:
        from desync.recorder import imports
    except Exception as error:  # noqa: BLE001 - whatever is wrong here must never reach the job
        if os.environ.get("DESYNC_DEBUG"):
            sys.stderr.write(f"desync: the recorder cannot start in {sys.executable}: {error}\n")
    else:
        imports.arm()


def _run_hidden() -> None:
    import importlib.machinery

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    import importlib.util  # only here: it takes longer to import than all the rest

    module = importlib.util.module_from_spec(spec)
    # It must find itself under its name, as if it had been imported first.
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_arm()
_run_hidden()
