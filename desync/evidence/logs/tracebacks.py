"""Python tracebacks in a log, also of several ranks mixed line by line."""

from __future__ import annotations

from dataclasses import replace

from desync.evidence.logs import patterns as p
from desync.evidence.logs.facts import Facts, Traceback
from desync.evidence.logs.speakers import Line, Speaker
from desync.model import Frame

MAX_FRAMES = 200
MAX_OPEN = 256
MAX_MESSAGE = 2000
_LAUNCHERS = (
    "ChildFailedError",
    "SignalException",
    "ProcessRaisedException",
    "ProcessExitedException",
    "RayTaskError",
    "ActorDiedError",
)


class Tracebacks:
    """Those that have begun and not ended, by who prints them."""

    def __init__(self) -> None:
        self._open: dict[Speaker, list[Traceback]] = {}
        self._newest: dict[Speaker, Traceback] = {}
        self._chained: set[Speaker] = set()
        self._spawned: int | None = None

    @property
    def open(self) -> bool:
        """Whether one is being read."""
        return bool(self._open)

    def take(self, line: Line, facts: Facts) -> bool:
        """Take in a line; returns whether it belongs to a traceback."""
        text = line.text
        if "Traceback" in text and p.TRACEBACK.match(text) is not None:
            self._begin(line, facts)
            return True
        if text.startswith("-- Process ") and (spawned := p.SPAWNED.match(text)) is not None:
            self._spawned = int(spawned[1])
            return True
        if "he above exception" in text and p.FOLLOWS.match(text) is not None:
            self._chained.add(line.speaker)
            return True
        if "did not receive grad" in text and (found := p.UNUSED.search(text)) is not None:
            self._add_parameters(line, found[1], int(found[2]), facts)
            return True
        mine = self._open.get(line.speaker)
        if not mine:
            return self._continue_message(line)
        if (frame := p.FRAME.match(text)) is not None:
            if len(mine[-1].frames) < MAX_FRAMES:
                mine[-1].frames.append(Frame(frame[3], frame[1], int(frame[2])))
            return True
        if text[:1] in (" ", "\t", ""):
            return True  # a line of source, or carets below it
        if (raised := p.RAISED.match(text)) is not None:
            self._close(line.speaker, mine, raised[1], raised[2] or "", facts)
            return True
        return False

    def _begin(self, line: Line, facts: Facts) -> None:
        facts.speakers[line.speaker] = None
        self._newest.pop(line.speaker, None)
        speaker = line.speaker
        if self._spawned is not None and speaker.rank is None:
            speaker = replace(speaker, rank=self._spawned)
        self._spawned = None
        if sum(map(len, self._open.values())) < MAX_OPEN:
            self._open.setdefault(line.speaker, []).append(Traceback(speaker, line.order, line.time, tree=line.tree))

    def _close(self, speaker: Speaker, mine: list[Traceback], kind: str, message: str, facts: Facts) -> None:
        traceback = mine.pop(0)
        if not mine:
            del self._open[speaker]
        traceback.type, traceback.message = kind, message[:MAX_MESSAGE]
        # Of several tracebacks mixed together the outermost frames came first; the innermost is what is reported.
        traceback.frames.reverse()
        traceback.launcher = kind.rpartition(".")[2] in _LAUNCHERS
        if speaker in self._chained:
            self._chained.discard(speaker)  # it only followed from the one before
            return
        if len(facts.tracebacks) < 100_000:
            facts.tracebacks.append(traceback)
            self._newest[speaker] = traceback

    def _continue_message(self, line: Line) -> bool:
        """A message of several lines, for ranks whose lines say whose they are."""
        newest = self._newest.get(line.speaker)
        if newest is None or line.speaker.rank is None or p.HEAD.search(line.text) is not None:
            self._newest.pop(line.speaker, None)
            return False
        newest.message = f"{newest.message}\n{line.text}"[:MAX_MESSAGE]
        return False

    def _add_parameters(self, line: Line, text: str, rank: int, facts: Facts) -> None:
        """DDP's list of unused parameters belongs to the error before it."""
        for traceback in reversed(facts.tracebacks):
            if "Expected to have finished reduction" in traceback.message and traceback.speaker.rank in (None, rank):
                if text not in traceback.message:
                    traceback.message = f"{traceback.message[:600]}\n{text}"[:MAX_MESSAGE]
                return

    def finish(self, facts: Facts) -> None:
        """The log is over: what has not ended was cut."""
        for mine in self._open.values():
            for traceback in mine:
                traceback.frames.reverse()
                if traceback.frames:
                    facts.tracebacks.append(traceback)
        self._open.clear()
