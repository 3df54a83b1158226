"""torchelastic's ruled box with the failures of one node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from desync.evidence.logs import patterns as p
from desync.evidence.logs.clock import time_of
from desync.evidence.logs.facts import Ended, Facts
from desync.evidence.logs.speakers import Line, Speaker

MAX_QUOTED = 1000
"""Lines of one entry's traceback that are read."""
INDENT = 2
NEWEST = 64
"""So many tracebacks before the summary are searched for those that it repeats."""


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
        self._left = 0
        """So many lines of the traceback that is being read are taken at most; 0 outside of one."""
        self.quoted: Line | None = None
        """The newest line if it is of a traceback: that of a rank whose main function has torch's ``@record``."""

    def take(self, line: Line, facts: Facts) -> bool:
        """Take in a line; returns whether it belongs to the box."""
        text = line.text
        self.quoted = self._quoted(line) if self._left else None
        if self.quoted is not None:
            return True
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

    def _quoted(self, line: Line) -> Line | None:
        """A line of a traceback without its indent; None where that is over, as the next entry and the rules have none."""
        if line.text and not line.text[:INDENT].isspace():
            self._left = 0
            return None
        self._left -= 1
        return self._by_rank(line, line.text[INDENT:])

    def _by_rank(self, line: Line, text: str) -> Line:
        speaker = Speaker(rank=self._entry.rank, file=line.speaker.file)  # the launcher's own numbers are not the rank's
        return replace(line, speaker=speaker, text=text, time=self._entry.time)

    def _field(self, name: str, value: str, line: Line, facts: Facts) -> None:
        if name == "time":
            self._entry = _Entry(time=time_of(value, None))
        elif name == "host":
            self._entry.host = value.strip()[:100]
        elif name == "rank" and (found := p.SUMMARY_RANK.match(value)) is not None:
            self._entry.rank, self._entry.local = int(found[1]), int(found[2])
        elif name == "traceback" and self._entry.rank is not None and p.TRACEBACK.match(value) is not None:
            self._left = MAX_QUOTED
            self.quoted = self._by_rank(line, value)
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


def merge_repeated(facts: Facts) -> None:
    """Take away the newest traceback, which the summary has told, if the rank has printed it itself before.

    Where no line said whose that was, the summary has now.
    """
    newest = facts.tracebacks[-1]
    for each in reversed(facts.tracebacks[-NEWEST:-1]):
        own = each.speaker.rank == newest.speaker.rank or each.speaker == Speaker(file=each.speaker.file)
        if own and each.type == newest.type and each.message.split("\n", 1)[0] == newest.message:
            each.speaker = newest.speaker
            facts.tracebacks.pop()
            return
