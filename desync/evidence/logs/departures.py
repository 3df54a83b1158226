"""What launchers and schedulers say of the end of a job, and torch of a process that leaves it."""

from __future__ import annotations

import signal

from desync.evidence.logs import patterns as p
from desync.evidence.logs.facts import Ended, Facts, Trouble
from desync.evidence.logs.speakers import Line

MAX_FACTS = 100_000
MAX_TEXT = 300


def cancelled(line: Line, facts: Facts) -> bool:
    """The scheduler ended the job; each of its nodes says so, and the first is enough."""
    found = p.CANCELLED.search(line.text)
    if found is None:
        return False
    facts.cancelled = facts.cancelled or found[1][:MAX_TEXT]
    return True


def death_signal(line: Line, facts: Facts) -> bool:
    """torchrun was sent a signal from outside; Ctrl-C is no more than an interruption."""
    found = p.DEATH_SIGNAL.search(line.text)
    if found is None:
        return False
    said = found[1] or found[2]
    number = int(said) if said.isdigit() else int(getattr(signal, said, 0))
    if number not in (0, signal.SIGINT) and len(facts.troubles) < MAX_FACTS:
        facts.troubles.append(Trouble("death_signal", line.speaker, line.order, line.time, found[0][:MAX_TEXT], number=number))
    return True


def mpirun(line: Line, facts: Facts) -> bool:
    """mpirun says which rank ended first."""
    found = p.MPIRUN_END.search(line.text)
    if found is None or len(facts.ended) >= MAX_FACTS:
        return False
    rank, pid, code = int(found[1]), int(found[2]), -int(found[4])
    facts.ended.append(Ended(line.speaker, line.order, line.time, code, rank, None, pid, found[3], root=True))
    return True


def undestroyed(line: Line, facts: Facts) -> bool:
    """A process ends without having destroyed its groups."""
    if p.UNDESTROYED.search(line.text) is None or p.HEAD.search(line.text) is None:
        return False
    if len(facts.left) < MAX_FACTS:
        facts.left[line.speaker] = None
    return True
