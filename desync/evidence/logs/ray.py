"""What Ray says of the processes that it has started."""

from __future__ import annotations

from desync.evidence.logs.facts import Facts
from desync.evidence.logs.patterns import RAY_WORKER
from desync.evidence.logs.speakers import Line

MAX_PLACED = 100_000


def ray_worker(line: Line, facts: Facts) -> bool:
    """Ray Train's list of its processes: which rank has the number that stands in front of later lines."""
    found = RAY_WORKER.search(line.text)
    if found is None or len(facts.placed) >= MAX_PLACED:
        return False
    facts.placed[(found[1], int(found[2]))] = int(found[3])
    return True
