"""Frames of foreign stacks, cut to what belongs to the user."""

from __future__ import annotations

import re
from collections.abc import Sequence

from desync.model import CallSite, Frame

MAX_FRAMES = 12
_MACHINERY = re.compile(
    r"(?:^|/)torch/(?:distributed|nn|autograd|_|utils|optim|cuda|fx|ao|library)|(?:^|/)torch/[a-z_]+\.py$"
    r"|/lib/python3[\d.]*/(?!site-packages|dist-packages)|^<frozen |^<string>$|/bin/torchrun$"
)
"""torch's own files and the standard library."""
_INSTALLED = ("/site-packages/", "/dist-packages/")


def call_site(frames: Sequence[tuple[str, str, int]]) -> CallSite | None:
    """The user's frames of a stack (function, file, line; innermost first), as the recorder would have kept them.

    Frames of other installed packages count only where nothing else is left; None if all are torch's, the library's or machine
    code.
    """
    own: list[Frame] = []
    installed: list[Frame] = []
    for each in frames:
        frame = Frame(*each)
        if not frame.is_native and not _MACHINERY.search(frame.file):
            (installed if any(part in frame.file for part in _INSTALLED) else own).append(frame)
    kept = (own or installed)[:MAX_FRAMES]
    return CallSite(tuple(kept)) if kept else None
