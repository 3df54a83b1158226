"""The environment in which a watched job runs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from desync.errors import LaunchError

TORCH_DEBUG_LEVELS = ("OFF", "INFO", "DETAIL")
NCCL_DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")

_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class DebugLevels:
    """What the user asked torch and NCCL to say of themselves; None: the environment's, else desync's."""

    torch: str | None = None
    nccl: str | None = None
    torch_wrapper: bool = False


def job_environment(base: Mapping[str, str], run_directory: Path, levels: DebugLevels) -> dict[str, str]:
    """``base`` with what the recorder needs and with the debug levels; ``run_directory`` is absolute."""
    environment = dict(base)
    environment["DESYNC_RUN_DIR"] = str(run_directory)
    environment["DESYNC_WATCHER_PID"] = str(os.getpid())
    if levels.torch_wrapper:
        environment["DESYNC_TORCH_WRAPPER"] = "1"
    environment["PYTHONPATH"] = _python_path(base.get("PYTHONPATH"))
    # Not torch's own variable: the recorder sets the level once it is in place.  In a process that it cannot reach (python -I)
    # DETAIL would bring torch's wrapper, with which DDP on gloo crashes.
    environment["DESYNC_TORCH_DEBUG"] = levels.torch or base.get("TORCH_DISTRIBUTED_DEBUG") or "DETAIL"
    _set_nccl(environment, run_directory, levels.nccl)
    return environment


def _set_nccl(environment: dict[str, str], run_directory: Path, level: str | None) -> None:
    if level is None and "NCCL_DEBUG" in environment:
        return  # the user wants to see it where NCCL shows it by default
    environment["NCCL_DEBUG"] = level or "INFO"
    environment.setdefault("NCCL_DEBUG_FILE", str(run_directory / "nccl-%h-%p.log"))


def _python_path(before: str | None) -> str:
    startup, home = startup_folder(), package_home()
    parts = [str(startup), *([before] if before else [])]
    # An installed desync is found by itself.  A source tree is appended: after the user's own path, and
    # before the standard library and what is installed.
    if home.name not in _INSTALLED and str(home) not in (before or "").split(os.pathsep):
        parts.append(str(home))
    return os.pathsep.join(parts)


def package_home() -> Path:
    """The folder from which ``import desync`` takes the package."""
    return Path(__file__).resolve().parents[2]


def startup_folder() -> Path:
    """The folder with the ``sitecustomize.py`` that starts the recorder.  Raises LaunchError if the installation lacks it."""
    spec = importlib.util.find_spec("desync.recorder")
    for place in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(place).resolve() / "startup"
        if (folder / "sitecustomize.py").is_file():
            return folder
    raise LaunchError("desync's recorder is not installed (desync/recorder/startup is missing)", "install desync again")
