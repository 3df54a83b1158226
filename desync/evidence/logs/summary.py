"""torchelastic's ruled box with the failures of one node."""

from __future__ import annotations

from dataclasses import dataclass

from desync.evidence.logs import patterns as p
from desync.evidence.logs.clock import time_of
from desync.evidence.logs.facts import Ended, Facts
from desync.evidence.logs.speakers import Line


@dataclass(slots=True)
class _Entry:
    time: int | None = None
    host: str | None = None
    rank: int | None = None
    local: int | None = None


class Summary:
    """The box that is being read, if one is."""

    def __init__(self) -> None:
        self._inside = False
        self._root = False
        self._entry = _Entry()

    def take(self, line: Line, facts: Facts) -> bool:
        """Take in a line; returns whether it belongs to the box."""
        text = line.text
        if p.SUMMARY_ROOT in text:
            self._inside, self._root, self._entry = True, True, _Entry()
            return True
        if p.SUMMARY_OTHERS.match(text) is not None:
            self._inside, self._root, self._entry = True, False, _Entry()
            return True
        if not self._inside:
            return False
        if text.startswith("====="):
            self._inside = False
            return True
        found = p.SUMMARY_LINE.match(text)
        if found is not None:
            self._field(found[1], found[2], line, facts)
        return found is not None or text.startswith(("[", "-----", "  "))

    def _field(self, name: str, value: str, line: Line, facts: Facts) -> None:
        if name == "time":
            self._entry = _Entry(time=time_of(value, None))
        elif name == "host":
            self._entry.host = value.strip()[:100]
        elif name == "rank" and (found := p.SUMMARY_RANK.match(value)) is not None:
            self._entry.rank, self._entry.local = int(found[1]), int(found[2])
        elif name == "exitcode" and (code := p.SUMMARY_CODE.match(value)) is not None:
            facts.ended.append(
                Ended(
                    speaker=line.speaker,
                    order=line.order,
                    time=self._entry.time,
                    code=int(code[1]),
                    rank=self._entry.rank,
                    local=self._entry.local,
                    pid=int(code[2]),
                    host=self._entry.host,
                    root=self._root,
                )
            )
