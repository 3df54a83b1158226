"""Evidence from a run whose watcher did not live to write its report."""

from __future__ import annotations

from pathlib import Path

from desync.evidence.journals import JournalFolder
from desync.evidence.run_directory import JOURNALS, STACKS, load
from desync.model import Evidence, RankStacks
from desync.stacks.faults import read_folder


def load_run(run_directory: Path) -> Evidence:
    """What the ranks and the watcher left in a run directory, the stacks that dying ranks wrote included.

    Raises RunDirectoryError if it is no run directory.
    """
    attempt, stacks = _stacks(run_directory)
    return load(run_directory, attempt=attempt, stacks=stacks)


def left_stacks(run_directory: Path) -> tuple[RankStacks, ...]:
    """The stacks that ranks of the newest attempt wrote when they were ended."""
    return _stacks(run_directory)[1]


def _stacks(run_directory: Path) -> tuple[int, tuple[RankStacks, ...]]:
    folder = JournalFolder(run_directory / JOURNALS)
    folder.refresh()
    ranks = {(process.node, process.pid): process.rank for process in folder.ranks().values()}
    attempt = folder.attempts[-1] if folder.attempts else 0
    folder.close()
    return attempt, read_folder(run_directory / STACKS, attempt, ranks).stacks
