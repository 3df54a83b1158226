"""What exceptions say of the store through which ranks find each other: no server for it, or a key that nobody wrote."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from desync.evidence.logs.facts import Facts
from desync.evidence.logs.ranks import Ranks
from desync.model import Claim, ClaimKind

NO_LISTENER = "server socket has failed to listen on any local network address"
"""Nobody can come to the rendezvous then, whatever the others do."""
_UNIQUE_ID = re.compile(
    r"\[(?P<waits>\d{1,7})\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[(?P<awaited>\d{1,7})\] "
    r"via c10d key-value store by key '(?P<key>[^']{1,200})', but store->get\('[^']{1,200}'\) got error: "
    r".{0,200}?(?:time(?:d )?out)",
    re.IGNORECASE,
)
_PAIR = re.compile(r"(\d{1,7}):(\d{1,7})")
"""The key for a send and its recv.  torch writes ``from [0]`` there too, but it is the first of the two that writes it."""
MAX_TEXT = 300


def no_listener(facts: Facts, ranks: Ranks) -> Iterator[Claim]:
    """The server of the rendezvous could not open its port."""
    for each in facts.tracebacks:
        if NO_LISTENER in each.message and not each.handled:
            text = f"{each.type}: {each.message}".split("\n", 1)[0][:MAX_TEXT]
            yield Claim(ClaimKind.RENDEZVOUS, (), text, by=ranks.of(each.speaker), time=each.time or each.order)
            return


def unique_id(facts: Facts, ranks: Ranks, came: Collection[int]) -> Iterator[Claim]:
    """Ranks wait for the id with which a communicator begins, and who should write it does not, unless it ``came`` elsewhere.

    The numbers are those of the group: only where a rank has the same number in the job they are taken for ranks.
    """
    waiting: dict[int, int] = {}
    first: Claim | None = None
    for each in facts.tracebacks:
        found = _UNIQUE_ID.search(each.message)
        rank = ranks.of(each.speaker) if found is not None else None
        if found is None or rank is None or rank != int(found["waits"]) or each.handled:
            continue
        pair = _PAIR.fullmatch(found["key"])
        waiting[rank] = int(pair[1]) if pair is not None else int(found["awaited"])
        text = each.message.split("\n", 1)[0][:MAX_TEXT]
        first = first or Claim(ClaimKind.ABSENT, (), text, by=rank, time=each.time or each.order)
    awaited = tuple(sorted(set(waiting.values()) - {*waiting, *came}))  # who waits itself is not the first
    if first is not None and awaited:
        yield Claim(ClaimKind.ABSENT, awaited, first.text, by=first.by, time=first.time)
