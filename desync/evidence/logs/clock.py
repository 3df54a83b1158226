"""Times in a log: many formats, most without a year and all without a zone."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from desync.evidence.logs.patterns import HEAD

_FULL = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"^[EWIF](\d{4}) (\d\d):(\d\d):(\d\d)\.(\d{1,9}) ")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Clock:
    """The newest time that a log has named; what has no time of its own gets that, in the order of the lines."""

    def __init__(self, year: int | None) -> None:
        self._year = year
        self._newest: int | None = None

    def see(self, text: str) -> None:
        """Look for a time in a line; a full date tells the year of the others, too."""
        if ":" not in text:
            return
        full = _FULL.search(text) if "20" in text else None
        if full is not None:
            self._year = _year(full) or self._year
        found = time_of(text, self._year)
        if found is not None:
            self._newest = found

    def now(self, order: int) -> int | None:
        """The time of the newest line (epoch ns, taken as UTC), made unique by its order; None if none was named yet."""
        return self._newest + order if self._newest is not None else None


def time_of(text: str, year: int | None) -> int | None:
    """The time that a line names (epoch ns); None if there is none, or its year is not known."""
    if ".cpp:" in text and (head := HEAD.search(text)) is not None and head[2] is not None and year is not None:
        return _ns(year, int(head[2][:-2]), int(head[2][-2:]), int(head[3]), int(head[4]), int(head[5]), head[6])
    if (full := _FULL.search(text)) is not None:
        day = (int(full[1]), int(full[2]), int(full[3]))
        return _ns(*day, int(full[4]), int(full[5]), int(full[6]), full[7] or "0")
    if (short := _GLOG.match(text)) is not None and year is not None:
        return _ns(year, int(short[1][:2]), int(short[1][2:]), int(short[2]), int(short[3]), int(short[4]), short[5])
    return None


def first_year(text: str) -> int | None:
    """The first year that a text names in a full date."""
    found = _FULL.search(text)
    return _year(found) if found is not None else None


def _year(full: re.Match[str]) -> int | None:
    return int(full[1]) if 2015 <= int(full[1]) <= 2100 else None


def _ns(year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str) -> int | None:
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(seconds=1) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])
