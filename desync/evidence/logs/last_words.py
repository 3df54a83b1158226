"""What shells, launchers and Kubernetes say at the end of a log about a process that was ended, without its rank."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

from desync.evidence.logs import patterns as p
from desync.evidence.logs.facts import Trouble
from desync.evidence.logs.speakers import Speaker

WORDS = ("OOMKilled", " return code = ", "illed", "ault", "rror", "bort", "nstruction", "xception")
"""One of these is in every line that is understood here."""
MAX_QUOTED = 300
MAX_LINE = 8000
SHELL_LINES = 12
"""A shell's words count among so many lines at the end: elsewhere the script went on."""
_SIGNALS = (
    ("seg", signal.SIGSEGV),
    ("bus", signal.SIGBUS),
    ("abort", signal.SIGABRT),
    ("illegal", signal.SIGILL),
    ("floating", signal.SIGFPE),
    ("kill", signal.SIGKILL),
)
_STARTERS = ("python", "torchrun", "accelerate", "deepspeed", "run")
"""What a command has that may have been the job: scripts end helpers of their own, too."""


def last_words(lines: Sequence[str], who: Speaker, order: int) -> Iterator[Trouble]:
    """Ends told in the last lines of a file, which hold nothing of what comes in front of lines."""
    pod = ""
    for index, line in enumerate(lines):
        if line.startswith("Name: ") and (named := p.POD_NAME.match(line)) is not None:
            pod = f"{named[1]}: "
        if "OOMKilled" in line and (found := p.POD_MEMORY.match(line)) is not None:
            yield Trouble("pod_memory", who, order, None, f"{'' if found['pod'] else pod}{line.strip()}"[:MAX_QUOTED])
        elif " return code = " in line and (code := p.RETURN_CODE.search(line[:MAX_LINE])) is not None:
            text = f"DeepSpeed's launcher: a process exited with return code = {code[1]}"
            yield Trouble("launcher_end", who, order, None, text, number=int(code[1]))
        elif index >= len(lines) - SHELL_LINES and (end := _shell_end(line)) is not None:
            yield Trouble("shell_end", who, order, None, line.strip()[:MAX_QUOTED], number=end)


def _shell_end(line: str) -> int | None:
    """Minus the signal by which a shell says that a program has ended."""
    found = p.SHELL_END.match(line) if len(line) < MAX_QUOTED * 4 and any(word in line for word in WORDS[2:]) else None
    if found is None or (found["command"] is not None and not any(word in found["command"] for word in _STARTERS)):
        return None
    how = found["how"].lower()
    return next(-int(number) for word, number in _SIGNALS if how.startswith(word))
