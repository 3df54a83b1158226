"""The stacks of calls that torch prints below a time-out, each for the operation that it belongs to.

Only the head of a stack says whose it is.  Where the frames of several ranks are mixed line by line nothing tells which is
whose: their numbers no longer count up, and none of these stacks is used.
"""

from __future__ import annotations

from dataclasses import replace

from desync.evidence.logs.facts import Facts
from desync.evidence.logs.speakers import Speaker
from desync.model import Frame

MAX_FRAMES = 64


class Stacks:
    """Those of one file, by who prints them."""

    def __init__(self) -> None:
        self._open: dict[Speaker, tuple[int, int | None]] = {}
        """For each speaker the operation of its newest stack, and that of the one before."""
        self._own: dict[Speaker, int] = {}
        """The same for those of which every line says whose it is."""
        self._newest: Speaker | None = None
        self._mixed: set[int] = set()

    def begin(self, speaker: Speaker, index: int, facts: Facts) -> None:
        """A stack's head, of the time-out with this index; the same one again says nothing new."""
        key = replace(speaker, rank=None)
        before = self._open[key][0] if key in self._open else None
        if before is not None and before != index and (before, 0) not in facts.stacks:
            self._mixed |= {before, index}  # two heads, and only then frames
        if (index, 0) in facts.stacks:
            self._open.pop(key, None)
            self._newest = None
            return
        self._open[key] = (index, before)
        self._own[speaker] = index
        self._newest = key

    def frame(self, speaker: Speaker, number: int, frame: Frame, facts: Facts) -> None:
        """The next frame of whoever prints it."""
        if speaker.rank is not None and speaker in self._own:
            frames = facts.stacks.setdefault((self._own[speaker], 0), [])
            if number == len(frames) < MAX_FRAMES:
                frames.append(frame)
            return
        key = replace(speaker, rank=None)
        key = key if key in self._open or self._newest is None else self._newest
        if key not in self._open:
            return
        index, before = self._open[key]
        if index in self._mixed:
            return
        frames = facts.stacks.setdefault((index, 0), [])
        if number == len(frames) < MAX_FRAMES:
            frames.append(frame)
        elif number < MAX_FRAMES:
            for each in (index, before):
                if each is not None:
                    self._mixed.add(each)
                    facts.stacks.pop((each, 0), None)
