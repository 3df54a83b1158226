"""The directory in which a run leaves everything: made new for each run, readable by its owner only."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from desync.errors import RunDirectoryError

BASE = Path("desync-runs")
LATEST = "latest"
MAX_NAME = 40
MAX_SAME_SECOND = 1000

_REMEDY = "choose another place with --run-dir"


def create(command: Sequence[str], wanted: Path | None, now: datetime) -> Path:
    """Make the run's directory and return its absolute path.

    ``wanted`` must be absent or empty; without it, ``desync-runs/<time>-<command>`` is made below the current directory and
    ``desync-runs/latest`` is pointed at it.  Raises RunDirectoryError.
    """
    try:
        directory = _make_default(command, now) if wanted is None else _make(wanted)
        for name in ("journals", "stacks"):
            (directory / name).mkdir(mode=0o700)
    except OSError as error:
        place = wanted or BASE
        raise RunDirectoryError(f"the run directory {place} cannot be made ({error.strerror})", _REMEDY) from error
    if wanted is None:
        _point_latest(directory)
    return directory


def _make(wanted: Path) -> Path:
    directory = wanted.absolute()
    if directory.exists():
        if not directory.is_dir():
            raise RunDirectoryError(f"the run directory {wanted} is a file", _REMEDY)
        if any(directory.iterdir()):
            raise RunDirectoryError(f"the run directory {wanted} is not empty", _REMEDY)
        directory.chmod(0o700)
    else:
        directory.mkdir(mode=0o700, parents=True)
    return directory


def _make_default(command: Sequence[str], now: datetime) -> Path:
    base = BASE.absolute()
    base.mkdir(mode=0o700, exist_ok=True)
    _refuse_strangers(base)
    stem = f"{now:%Y%m%d-%H%M%S}-{command_name(command)}"
    for number in range(1, MAX_SAME_SECOND):
        directory = base / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            return directory
    raise RunDirectoryError(f"{MAX_SAME_SECOND} runs named {stem} exist", _REMEDY)


def _refuse_strangers(base: Path) -> None:
    """Keep out of a folder that somebody else has laid out: its owner could put files of his own in a run's place."""
    owners = {base.lstat().st_uid, base.stat().st_uid} - {0, os.geteuid()}
    if owners:
        # On some network and container file systems even what we make ourselves belongs to another.
        with tempfile.TemporaryFile(dir=base) as own:
            owners -= {os.fstat(own.fileno()).st_uid}
    if owners:
        raise RunDirectoryError(f"{base} belongs to somebody else (user {min(owners)})", _REMEDY)


def command_name(command: Sequence[str]) -> str:
    """A short name for a launch line that is safe as a file name: the script if one is seen, else the program."""
    script = next((Path(part).stem for part in command[1:] if part.endswith(".py")), None)
    name = script or Path(command[0]).name
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:MAX_NAME] or "job"


def _point_latest(directory: Path) -> None:
    """Point ``latest`` at the run; something else of that name, or a file system without links, is left alone."""
    link = directory.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    temporary = directory.parent / f".{LATEST}.{os.getpid()}"
    with contextlib.suppress(OSError):
        temporary.symlink_to(directory.name)
        os.replace(temporary, link)
