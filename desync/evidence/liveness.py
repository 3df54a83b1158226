"""Whether a process of this machine still runs, safe against numbers that were used again."""

from __future__ import annotations

from pathlib import Path

_ENDED = (b"Z", b"X")


def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot (proc(5), /proc/pid/stat, field 22); None if it is gone or a zombie."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in _ENDED:
        return None
    return int(fields[19])


def stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/pid/stat from the third (state) on; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > 19 else None


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that started then (0: not known when) still runs; a zombie does not."""
    now = process_start(pid)
    return now is not None and started in (0, now)
