"""Which process of a family is the rank: its children inherit the launcher's variables, but they are none.

A rank leaves its process number in the environment when its interpreter starts, long before it imports torch, so that a helper
that it starts first and that imports torch as well does not take its place.  Every process that a launcher started imports this
module at its start: nothing that takes time to import belongs here.
"""

from __future__ import annotations

import os
import sys

CLAIM = "DESYNC_RANK_PID"
_LAUNCHERS = frozenset(
    {
        "torchrun",
        "accelerate",
        "deepspeed",
        "horovodrun",
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
    }
)


def at_start() -> None:
    """Claim the rank that the environment names for this process, unless an ancestor has it.

    An ancestor may be a script that only starts the real training.  That one is known when it enters
    ``init_process_group``, as every process is that no launcher started.
    """
    if is_launcher():
        os.environ.pop(CLAIM, None)  # whom it starts gets a rank of its own
    elif not os.environ.get(CLAIM) and os.environ["RANK"].isdigit():
        take()


def take() -> None:
    """Let the children of this process know that it is the rank."""
    os.environ[CLAIM] = str(os.getpid())


def ancestor() -> int:
    """The process, an ancestor of this one, that has claimed a rank; 0: there is none."""
    claimed = os.environ.get(CLAIM, "")
    return int(claimed) if claimed.isdecimal() and claimed != str(os.getpid()) else 0


def is_launcher() -> bool:
    """Whether the command of this process is a launcher's: ``torchrun …``, ``python -m torch.distributed.run …``."""
    words = sys.orig_argv[1:]
    for position, word in enumerate(words):
        if word == "-m":
            return words[position + 1 : position + 2] != [] and words[position + 1] in _LAUNCHERS
        if not word.startswith("-"):
            return os.path.basename(word) in _LAUNCHERS
    return False
