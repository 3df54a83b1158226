"""Waiting for ``torch.distributed`` without importing it.

A process that never imports it pays for one list lookup per import of another module, and nothing else.  Every Python process
of a job imports this module: nothing that takes time to import belongs here (``importlib.abc`` alone takes 30 ms).
"""

from __future__ import annotations

import importlib.machinery
import os
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
            # Python before 3.12 takes finders that have only find_module.
            find = None if _waits(finder) else getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    self._run_after(spec.loader)
                return spec
        return None

    def _run_after(self, loader: Loader) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            if module.__name__ == TARGET:  # the loader of an archive loads others as well
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _install(module)

        try:
            # On the instance: the loader's type stays what other tools expect of it.
            loader.exec_module = exec_module  # type: ignore[method-assign]  # loaders are not shared, but for archives
        except AttributeError as error:
            _refused(error)


def _waits(finder: object) -> bool:
    """Whether it is one of these finders, of another installation of desync too: two of them would ask each other for ever."""
    return type(finder).__name__ == _Finder.__name__ and type(finder).__module__ == _Finder.__module__


def _install(module: ModuleType) -> None:
    try:
        from desync.recorder import install

        install.distributed_imported(module)
    except Exception as error:  # noqa: BLE001 - the job comes first
        _refused(error)


def _refused(error: Exception) -> None:
    from desync.recorder.session import complain, described

    complain(f"the recorder cannot be installed: {described(error)}")


def arm() -> None:
    """Wait for the import of ``torch.distributed``; if it has happened already, install at once."""
    if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
        from desync.recorder import claims  # for the few processes that may be ranks

        claims.at_start()
    if (module := sys.modules.get(TARGET)) is not None:
        _install(module)
    elif not any(map(_waits, sys.meta_path)):
        sys.meta_path.insert(0, _Finder())
