"""Whether the kernel ended processes for want of memory while the job ran, from the counters that it keeps of that.

A rank that vanishes by SIGKILL does not say who sent it.  The counters are those of the rank's own cgroup (version 2:
``memory.events``, version 1: ``memory.oom_control``) and that of the whole machine (``/proc/vmstat``).  Each may be absent.
"""

from __future__ import annotations

import re
from pathlib import Path

from desync.model import KernelKills

MAX_BYTES = 1 << 16
_CGROUP = re.compile(rb"\d+:((?:[^:]*,)?memory(?:,[^:]*)?|):(.*)")
"""Of version 1's memory controller, or of version 2, which names no controllers."""
_COUNT = re.compile(rb"^oom_kill (\d{1,18})$", re.MULTILINE)


class KernelKillCounters:
    """The counters of the job's ranks, read when each is first seen and again when one is missed."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._cgroup_of: dict[int, Path | None] = {}
        """By rank."""
        self._before: dict[Path, int] = {}
        self._pids: dict[int, int] = {}
        self._machine = proc / "vmstat"
        self._note(self._machine)

    def add(self, rank: int, pid: int) -> None:
        """A rank runs in this process now."""
        if self._pids.get(rank) == pid:
            return
        self._pids[rank] = pid
        counter = self._counter_of(pid)
        self._cgroup_of[rank] = counter
        if counter is not None:
            self._note(counter)

    def kills(self) -> tuple[KernelKills, ...]:
        """What has been counted since: in the ranks' cgroups, or else on the machine."""
        by_counter: dict[Path, list[int]] = {}
        for rank, counter in self._cgroup_of.items():
            if counter is not None:
                by_counter.setdefault(counter, []).append(rank)
        found = [
            KernelKills(tuple(sorted(ranks)), more, in_cgroup=True)
            for counter, ranks in by_counter.items()
            if (more := self._more(counter))
        ]
        if not found and self._pids and (more := self._more(self._machine)):
            found = [KernelKills(tuple(sorted(self._pids)), more, in_cgroup=False)]
        return tuple(found)

    def _note(self, counter: Path) -> None:
        count = _count(counter)
        if count is not None:
            self._before.setdefault(counter, count)

    def _more(self, counter: Path) -> int:
        now, before = _count(counter), self._before.get(counter)
        return 0 if now is None or before is None else max(0, now - before)

    def _counter_of(self, pid: int) -> Path | None:
        """The file that counts the kills in a process's cgroup."""
        for line in (_read(self._proc / str(pid) / "cgroup") or b"").splitlines():
            match = _CGROUP.fullmatch(line)
            if match is None:
                continue
            place = match[2].decode(errors="replace").lstrip("/")
            if match[1]:
                counter = self._cgroups / "memory" / place / "memory.oom_control"
            else:
                counter = self._cgroups / place / "memory.events"
            if _count(counter) is not None:
                return counter
        return None


def _count(counter: Path) -> int | None:
    match = _COUNT.search(_read(counter) or b"")
    return int(match[1]) if match else None


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return None
