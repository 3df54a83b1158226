"""A page of text on a console: paragraphs with hanging indents, glyphs that the output can show, foreign text made harmless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from desync.report.text import LINE, SENTENCE, clean
from desync.report.view import Fact


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The signs of a page."""

    done: str
    waiting: str
    absent: str
    mismatched: str
    failed: str
    unseen: str
    culprit: str
    bar: str
    dot: str
    bullet: str


UNICODE = Glyphs("✓", "…", "—", "≠", "✗", "?", "►", "│", "·", "•")
ASCII = Glyphs("ok", "...", "--", "!=", "x", "?", ">", "|", "-", "*")

_PLAIN = str.maketrans(
    {"—": "-", "\u2013": "-", "…": "...", "→": "->", "←": "<-", "≠": "!=", "·": "-", "\u00d7": "x", "\u2019": "'"}
)


WIDEST = 100
"""Longest line of running text: longer ones are hard to read."""


def joined(*parts: Text) -> Text:
    """The parts as one Text, each with its own style (``+`` would give the first one's to all)."""
    return Text("").join(parts)


class Page:
    """Writes lines to a console; everything that comes from outside goes through :meth:`say`."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.encoding = console.encoding
        self.plain = not self.encoding.lower().startswith("utf")
        self.glyphs = ASCII if self.plain else UNICODE
        self.width = max(console.width, 40)
        self.measure = min(self.width, WIDEST)

    def say(self, text: str, limit: int = LINE) -> str:
        """The text as one harmless line that the output's encoding can hold."""
        shown = clean(text, limit)
        if not self.plain:
            return shown
        return shown.translate(_PLAIN).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def text(self, text: str, style: str = "", limit: int = LINE) -> Text:
        """Like :meth:`say`, as a Text (in which markup means nothing)."""
        return Text(self.say(text, limit), style=style)

    def parts(self, fact: Fact) -> Text:
        """A line of a fact, its strong parts bold; blanks at the ends of a part stay."""
        made = []
        for part in fact.parts:
            lead, trail = part.text[: 1 if part.text[:1] == " " else 0], part.text[-1:] if part.text[-1:] == " " else ""
            made += [Text(lead), self.text(part.text, "bold" if part.strong else "", SENTENCE), Text(trail)]
        return joined(*made)

    def blank(self) -> None:
        """An empty line."""
        self.console.print()

    def join(self, *parts: str) -> str:
        """The parts that are not empty, with dots between."""
        return self.say(f" {self.glyphs.dot} ".join(filter(None, parts)), SENTENCE)

    def heading(self, title: str, aside: str = "") -> None:
        """The title of a section, after an empty line."""
        self.blank()
        self.line(joined(Text(title, "bold"), Text("  "), self.text(aside, "dim")))

    def line(self, text: Text, first: str = "", rest: str | None = None) -> None:
        """A paragraph, wrapped; ``first`` comes before its first line, ``rest`` (blanks if None) before the others."""
        indent = " " * len(first) if rest is None else rest
        for number, part in enumerate(text.wrap(self.console, self.measure - max(len(first), len(indent)))):
            part.rstrip()
            self.console.print(joined(Text(indent if number else first), part), soft_wrap=True)

    def bullets(self, lines: Sequence[str], most: int) -> None:
        """Foreign lines as a list, at most so many of them."""
        for line in lines[:most]:
            self.line(self.text(line), f"  {self.glyphs.bullet} ")
        self.rest(len(lines) - most)

    def rest(self, left_out: int) -> None:
        """Say how many entries a list has beyond those shown, if any."""
        if left_out > 0:
            self.line(Text(f"{left_out} more in report.json", "dim"), "    ")

    def raw(self, text: Text) -> None:
        """A line that has been laid out already; what does not fit is cut."""
        text.truncate(self.width)
        text.rstrip()
        self.console.print(text, soft_wrap=True)
