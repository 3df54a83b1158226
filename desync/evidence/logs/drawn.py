"""Tracebacks that are drawn (boxes of ``rich``, trees of Python's exception groups) as the plain lines that mean the same.

What stands in a box or a branch is handed on as Python itself would print it, so that :mod:`~desync.evidence.logs.tracebacks`
need not know.  Both shapes are those of rich 10 to 15 and of Python 3.11 and newer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from desync.evidence.logs import patterns as p
from desync.evidence.logs.speakers import Line, Speaker

MAX_OPEN = 256
MAX_FRAMES = 200
MAX_TEXT = 2000
MAX_PATH = 1000
MAX_WAIT = 40
"""So many lines later a message does not go on any more; fewer than the reader follows a traceback for."""
MAX_AGE = 2000
"""A drawing that has had no line for so many others is over, whether or not its end was seen."""
UNSURE_WIDTH = 100
"""rich draws no box wider than this unless it is told to, but breaks the message below it only where the terminal ends."""
_EDGES = "│|╭╰┌└+❱ "
_HEADER = "Traceback (most recent call last):"


@dataclass(slots=True)
class _Box:
    """A box of rich's, from its title to the exception below it."""

    indent: int
    """How far a logger's columns have moved it."""
    width: int
    order: int
    """Of its newest line."""
    titles: int = 1
    """Boxes that have begun and not ended: without a rank in front those of several ranks are mixed."""
    path: str = ""
    """The beginning of a frame's line, which goes on in the next one."""
    held: Line | None = None
    """The exception, whose message may go on in the next line."""
    newest: str = ""
    """The newest line of that."""


@dataclass(slots=True)
class _Tree:
    """A group of exceptions, from its head to the line below its last leaf."""

    indent: int
    order: int
    head: int
    """The order of its first line."""
    before: tuple[Line, ...] = ()
    """What stood above the group and holds for each of its leaves: that it only follows, or whose process it was."""
    state: str = "group"
    """Inside of a "group" or a "leaf", at the "start" of either, or in "other" lines."""
    frames: dict[int, list[Line]] = field(default_factory=dict)
    """Those of the groups around the newest line, by indent: an exception that was never raised alone has no others."""
    chained: Line | None = None
    """In a leaf the line that says that what comes now only follows."""
    inner: tuple[int, Line] | None = None
    """The same for a group inside of a leaf, and the leaf's indent."""


class Drawn:
    """The drawings that have begun and not ended, by who prints them."""

    def __init__(self) -> None:
        self._boxes: dict[Speaker, _Box] = {}
        self._trees: dict[Speaker, _Tree] = {}
        self._before: dict[Speaker, Line] = {}
        self.took = False
        """Whether the newest line was part of a drawing."""
        self.waiting = 0
        """How many exceptions wait for more of their message."""

    def plain(self, line: Line) -> Iterator[Line]:
        """The lines that Python would have printed for this one: itself where nothing is drawn, none or several where it is."""
        if self.waiting:
            yield from self._overdue(line.order)
        self.took = True
        if (box := self._boxes.get(line.speaker)) is not None and self._young(box, line):
            if box.held is not None:
                if _goes_on(box, box.held, line):
                    return
                yield self._released(box, box.held)
            if line.speaker in self._boxes and (inside := _inside(box, line)) is not None:
                yield from inside
                self.waiting += box.held is not None
                return
        if (
            (tree := self._trees.get(line.speaker)) is not None
            and self._young(tree, line)
            and (margin := p.TREE_MARGIN.match(line.text)) is not None
        ):
            yield from self._in_tree(tree, line, margin)
            return
        if p.LAST_CALL in line.text and (begun := self._begins(line)) is not None:
            yield from begun
            return
        self.took = False
        self._remember(line)
        yield line

    def rest(self) -> Iterator[Line]:
        """The log is over: exceptions that still waited for more of their message."""
        return self._overdue(None)

    def _overdue(self, order: int | None) -> Iterator[Line]:
        for box in list(self._boxes.values()):
            if box.held is not None and (order is None or order - box.order > MAX_WAIT):
                yield self._released(box, box.held)

    def _young(self, drawing: _Box | _Tree, line: Line) -> bool:
        young = line.order - drawing.order <= MAX_AGE
        if not young:
            self._boxes.pop(line.speaker, None)
            self._trees.pop(line.speaker, None)
        return young

    def _begins(self, line: Line) -> tuple[Line, ...] | None:
        """What a drawing's first line says; None if it is none."""
        before = self._before.pop(line.speaker, None)
        if (title := p.BOX_TITLE.match(line.text)) is not None:
            known = self._boxes.get(line.speaker)
            if known is None and len(self._boxes) >= MAX_OPEN:
                return None
            titles = known.titles + 1 if known is not None else 1
            self._boxes[line.speaker] = _Box(len(title[1]), len(title[2]), line.order, titles)
            return (replace(line, text=_HEADER),)
        if (head := p.TREE_HEAD.match(line.text)) is not None and len(self._trees) < MAX_OPEN:
            self._trees[line.speaker] = _Tree(len(head[1]), line.order, line.order, (before,) if before is not None else ())
            return ()
        return None

    def _remember(self, line: Line) -> None:
        if p.FOLLOWS.match(line.text) is not None or p.SPAWNED.match(line.text) is not None:
            if len(self._before) < MAX_OPEN:
                self._before[line.speaker] = line
        elif self._before and line.text.strip():
            self._before.pop(line.speaker, None)

    def _released(self, box: _Box, held: Line) -> Line:
        """The exception, now that its message is whole; with it the box has ended."""
        box.held = None
        self.waiting -= 1
        box.titles -= 1
        if box.titles <= 0:
            del self._boxes[held.speaker]
        return held

    def _in_tree(self, tree: _Tree, line: Line, margin: re.Match[str]) -> Iterator[Line]:
        tree.order = line.order
        indent, text = len(margin[1]), line.text[margin.end() :]
        if margin[2] == "+":
            numbered = p.TREE_NUMBER.match(line.text, indent)
            tree.state = "start" if numbered is not None else "other"
            tree.chained = None
            below = indent + 2 if line.text.startswith("+-+", indent) else indent  # where the next leaf's own lines begin
            tree.frames = {of: frames for of, frames in tree.frames.items() if of < below}
            if tree.inner is not None and below <= tree.inner[0]:
                tree.inner = None
            if numbered is None and indent <= tree.indent + 2 and p.TREE_END.match(line.text, indent) is not None:
                del self._trees[line.speaker]
        elif text.startswith("Exception Group Traceback"):
            if tree.chained is not None and tree.inner is None:
                tree.inner = (indent, tree.chained)
            tree.state, tree.frames[indent] = "group", []
        elif tree.state == "group":
            frames = tree.frames.setdefault(indent, [])
            if text.startswith("  File ") and len(frames) < MAX_FRAMES:
                frames.append(replace(line, text=text))
        elif tree.state == "start":
            yield from _leaf(tree, replace(line, text=text, tree=tree.head))
        elif tree.state == "leaf":
            tree.chained = line if p.FOLLOWS.match(text) is not None else None if text.startswith("Traceback") else tree.chained
            yield replace(line, text=text, tree=tree.head)


def _leaf(tree: _Tree, line: Line) -> Iterator[Line]:
    """A leaf's first line: the head of its own traceback, or the exception alone, which then surfaced where its group did."""
    headed = line.text.startswith("Traceback")
    raised = p.RAISED.match(line.text) if not headed else None
    tree.state = "leaf" if headed or raised is not None else "other"
    if raised is not None and p.GROUP_RAISED.search(line.text) is not None:
        tree.state = "other"
    if tree.state == "leaf":
        before = (*tree.before, *((tree.inner[1],) if tree.inner is not None else ()))
        yield from (replace(each, speaker=line.speaker, text=each.text.lstrip(" |"), order=line.order) for each in before)
        if raised is not None:
            yield replace(line, text=_HEADER)
            yield from tree.frames[max(tree.frames)] if tree.frames else ()
        yield line


def _inside(box: _Box, line: Line) -> tuple[Line, ...] | None:
    """What a line of a box says, as Python would; None for a line of somebody else's."""
    box.order = line.order
    text = _moved_back(box, line.text)
    first = text[:1]
    if first and first in "│|":
        return (replace(line, text=_frame(box, text[2:].rstrip("│| ")) or "    "),)
    if first and first in "╭╰┌└+" and p.BOX_TITLE.match(line.text) is None:
        return (replace(line, text="    "),)
    raised = f"{text} " if text.endswith(":") else text
    if p.RAISED.match(raised) is not None:
        box.held, box.newest = replace(line, text=raised), text
        return ()
    return None


def _moved_back(box: _Box, text: str) -> str:
    return (text[box.indent :] if not text[: box.indent].strip() else text).rstrip()


def _frame(box: _Box, content: str) -> str | None:
    """Python's line for a frame, once it is whole: a long path is broken wherever the box ends."""
    if not content or content[0] in _EDGES:
        box.path = ""
        return None
    whole = box.path + content
    if (found := p.BOX_FRAME.match(whole)) is not None:
        box.path = ""
        return f'  File "{found[1]}", line {found[2]}, in {found[3]}'
    full = len(content) >= box.width - 4
    box.path = whole + ("" if full else " ") if len(whole) < MAX_PATH else ""
    return None


def _goes_on(box: _Box, held: Line, line: Line) -> bool:
    """Whether the line continues the message that is held, because rich broke it: its first word had no room before.

    Where the place of the break is not sure, only lines of the same rank count: any other may be of another process.
    """
    text = _moved_back(box, line.text)
    if not text or text[0] in _EDGES or len(held.text) >= MAX_TEXT or p.HEAD.search(text) is not None:
        return False
    sure = box.width != UNSURE_WIDTH and len(box.newest) <= box.width
    if not (sure or line.speaker.rank is not None) or len(box.newest) + 1 + len(text.split(" ", 1)[0]) <= box.width:
        return False
    broken_word = len(box.newest) >= box.width and " " not in box.newest
    between = "" if broken_word or held.text.endswith(" ") else " "
    box.held, box.newest, box.order = replace(held, text=held.text + between + text), text, line.order
    return True
