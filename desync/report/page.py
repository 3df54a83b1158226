"""A page of text on a console: paragraphs with hanging indents, glyphs that the output can show, foreign text made harmless."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from desync.report.text import LINE, clean


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
    {"—": "-", "–": "-", "…": "...", "→": "->", "←": "<-", "≠": "!=", "·": "-", "×": "x", "≤": "<=", "≥": ">=", "’": "'"}
)


class Page:
    """Writes lines to a console; everything that comes from outside goes through :meth:`say`."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.encoding = console.encoding
        self.plain = not self.encoding.lower().startswith("utf")
        self.glyphs = ASCII if self.plain else UNICODE
        self.width = max(console.width, 40)

    def say(self, text: str, limit: int = LINE) -> str:
        """The text as one harmless line that the output's encoding can hold."""
        shown = clean(text, limit)
        if not self.plain:
            return shown
        return shown.translate(_PLAIN).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def text(self, text: str, style: str = "", limit: int = LINE) -> Text:
        """Like :meth:`say`, as a Text (in which markup means nothing)."""
        return Text(self.say(text, limit), style=style)

    def blank(self) -> None:
        """An empty line."""
        self.console.print()

    def heading(self, title: str, aside: str = "") -> None:
        """The title of a section, after an empty line."""
        self.blank()
        self.line(Text.assemble((title, "bold"), (f"  {self.say(aside)}" if aside else "", "dim")))

    def line(self, text: Text, first: str = "", rest: str | None = None) -> None:
        """A paragraph, wrapped to the page; ``first`` comes before its first line, ``rest`` (blanks if None) before the others."""
        indent = " " * len(first) if rest is None else rest
        for number, part in enumerate(text.wrap(self.console, self.width - max(len(first), len(indent)))):
            self.console.print(Text(indent if number else first) + part, soft_wrap=True)

    def raw(self, text: Text) -> None:
        """A line that has been laid out already; what does not fit is cut."""
        text.truncate(self.width)
        text.rstrip()
        self.console.print(text, soft_wrap=True)
