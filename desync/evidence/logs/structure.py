"""What DDP says when ranks have built different models."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from desync.evidence.logs.facts import Facts
from desync.model import Claim, ClaimKind

_COUNTS = re.compile(
    r"DDP expects same model across all ranks, but Rank (\d{1,7}) has (\d{1,9}) params, "
    r"while rank (\d{1,7}) has inconsistent (\d{1,9}) params"
)
_SIZES = re.compile(r"\[(\d{1,7})\]: params\[(\d{1,9})\] in this process with sizes? (.{1,200}?) appears not to match")


def structure(facts: Facts) -> Iterator[Claim]:
    """Who differs: by majority of the numbers that all messages name; who prints that its sizes differ is the odd one."""
    counts: dict[int, int] = {}
    odd: dict[int, str] = {}
    time = 0
    for each in facts.tracebacks:
        if (found := _COUNTS.search(each.message)) is not None:
            counts[int(found[1])], counts[int(found[3])] = int(found[2]), int(found[4])
            time = time or each.time or each.order
        elif (found := _SIZES.search(each.message)) is not None:
            odd[int(found[1])] = found[0]
            time = time or each.time or each.order
    if counts:
        yield _by_count(counts, time)
    elif odd:
        yield Claim(ClaimKind.STRUCTURE, tuple(sorted(odd)), next(iter(odd.values()))[:300], time=time)


def _by_count(counts: dict[int, int], time: int) -> Claim:
    words = ", ".join(f"rank {rank} has {number}" for rank, number in sorted(counts.items())[:8])
    text = f"numbers of parameters differ: {words}"
    gone = tuple(rank for rank, number in counts.items() if number == 0)
    if gone:
        # A count of 0 is no model: that rank died, or never came.
        return Claim(ClaimKind.ABSENT, gone, text, time=time, op="DistributedDataParallel")
    (usual, times), *others = Counter(counts.values()).most_common()
    decided = not others or times > others[0][1]
    odd = tuple(sorted(rank for rank, number in counts.items() if number != usual)) if decided else ()
    return Claim(ClaimKind.STRUCTURE, odd, text, time=time)
