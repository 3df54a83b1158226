"""Waiting for ``torch.distributed`` without importing it.

A process that never imports it pays for one list lookup per import of another module, and nothing else.  Every Python process
of a job imports this module: nothing that takes time to import belongs here (``importlib.abc`` alone takes 30 ms).
"""

from __future__ import annotations

import importlib.machinery
import sys

TYPE_CHECKING = False  # type checkers know it by its name; importing typing would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from types import ModuleType

TARGET = "torch.distributed.distributed_c10d"


class _Finder:
    """Lets the other finders find the target, and runs the recorder's installation after the module's own code."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != TARGET:
            return None
        # It stays: who asks only where the module is (importlib.util.find_spec) must not use it up.
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    self._run_after(spec.loader)
                return spec
        return None

    def _run_after(self, loader: Loader) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _install(module)

        # On the instance: the loader's type stays what other tools expect of it.
        loader.exec_module = exec_module  # type: ignore[method-assign]  # a loader of its own belongs to this one module


def _install(module: ModuleType) -> None:
    try:
        from desync.recorder import install

        install.distributed_imported(module)
    except Exception as error:  # noqa: BLE001 - the job comes first
        from desync.recorder.session import complain

        complain(f"the recorder cannot be installed: {type(error).__name__}: {error}")


def arm() -> None:
    """Wait for the import of ``torch.distributed``; if it has happened already, install at once."""
    if (module := sys.modules.get(TARGET)) is not None:
        _install(module)
    else:
        sys.meta_path.insert(0, _Finder())
