"""Answers of ``ncclras -f json``: how many operations of each kind each rank of each communicator has called.

The counts say nothing of order and nothing of p2p, and a rank that is one behind may simply be about to call: only two answers
that show the same say that it stands.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from desync.evidence.flight_recorder.names import public
from desync.model import Claim, ClaimKind, Trace

MAX_RANKS = 1 << 17
CERTAIN_LAG = 8
"""A rank this far behind in one answer is not merely about to call."""

# NCCL 2.28 forgets a comma behind this field of a missing rank.
_FORGOTTEN = re.compile(r'("nvml_dev"\s*:\s*-?\d+)(\s*")')


@dataclass(frozen=True, slots=True)
class Member:
    """One rank of a communicator."""

    rank: int
    host: str
    pid: int
    counts: tuple[tuple[str, int], ...]
    missing: bool
    """RAS could not ask it, or takes it for dead."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: the members of each communicator, by its hash."""

    time: str
    version: str
    communicators: dict[str, tuple[Member, ...]]


@dataclass(frozen=True, slots=True)
class RasEvidence:
    """What all answers of one job come to."""

    traces: tuple[Trace, ...]
    claims: tuple[Claim, ...]
    world_size: int | None
    notes: tuple[str, ...]


def parse(text: str) -> list[Answer]:
    """All answers in a text, one behind the other.  Raises ValueError if there is none."""
    text = _FORGOTTEN.sub(r"\1,\2", text)
    decoder, answers, place = json.JSONDecoder(), [], text.find("{")
    while place >= 0:
        try:
            raw, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            break
        if isinstance(raw, dict) and isinstance(raw.get("communicators"), list):
            answers.append(_answer(raw))
        place = text.find("{", end)
    if not answers:
        raise ValueError("it is no complete answer of ncclras -f json")
    return answers


def _answer(raw: dict[str, Any]) -> Answer:
    found: dict[str, tuple[Member, ...]] = {}
    for index, each in enumerate(raw["communicators"]):
        if isinstance(each, dict):
            members = [*_members(each.get("ranks"), missing=False), *_members(each.get("missing_ranks"), missing=True)]
            found[f"{_text(each.get('hash'))} {_text(each.get('secondary_hash'))}".strip() or str(index)] = tuple(members)
    return Answer(_text(raw.get("timestamp")), _text(raw.get("nccl_version")), found)


def _members(raw: Any, *, missing: bool) -> Iterator[Member]:
    for each in raw if isinstance(raw, list) else ():
        if not isinstance(each, dict) or not isinstance(each.get("rank"), int) or not 0 <= each["rank"] < MAX_RANKS:
            continue
        counts = each.get("collective_counts")
        pairs = counts.items() if isinstance(counts, dict) else ()
        known = tuple((str(kind)[:60], count) for kind, count in pairs if type(count) is int)
        pid = each.get("pid")
        yield Member(each["rank"], _text(each.get("host")), pid if isinstance(pid, int) else 0, known, missing)


def _text(value: Any) -> str:
    return value[:200] if isinstance(value, str) else ""


def combine(answers: Sequence[Answer]) -> RasEvidence:
    """Who is behind in every answer, and who could not be asked."""
    ordered = sorted(answers, key=lambda answer: answer.time)
    newest = ordered[-1]
    ranks = _job_ranks(newest)
    behind = _standing_behind(ordered)
    claims = [*_claims_of_missing(newest, ranks), *_claims_of_behind(behind, newest, ranks)]
    notes = ["ncclras counts operations by kind: it gives no order, no sequence number and no p2p"]
    if len(ordered) == 1:
        notes.append("there is one answer of ncclras only: a small lag can be normal; ask again some seconds later")
    else:
        notes.append(_movement(ordered[0], newest))
    traces = {rank: Trace(rank, pid=pid or None, node=host or None) for (host, pid), rank in ranks.items()}
    if not ranks:
        notes.append("no communicator of ncclras holds all processes: it numbers ranks of groups, and none of the job")
    world = len(_processes(newest))
    return RasEvidence(tuple(traces[rank] for rank in sorted(traces)), tuple(claims), world or None, tuple(notes))


def _movement(first: Answer, last: Answer) -> str:
    """Whether anybody has finished anything between two answers."""
    between = f"between the answers of {first.time or 'the first moment'} and {last.time or 'the last'}"
    common = first.communicators.keys() & last.communicators.keys()
    if any(first.communicators[each] != last.communicators[each] for each in common):
        return f"counts moved on {between}: the job was running"
    return f"no count has moved {between}: nothing was finished meanwhile"


_Process = tuple[str, int]


def _process(member: Member) -> _Process:
    return member.host, member.pid


def _job_ranks(answer: Answer) -> dict[_Process, int]:
    """Ranks in the job by process: those of the communicator that holds all; without one, none is known."""
    largest = max(answer.communicators.values(), key=len, default=())
    found = {_process(member): member.rank for member in largest}
    return found if len(found) == len(_processes(answer)) else {}


def _processes(answer: Answer) -> set[_Process]:
    return {_process(member) for members in answer.communicators.values() for member in members}


@dataclass(frozen=True, slots=True)
class _Lag:
    communicator: str
    member: Member
    kind: str
    by: int


def _standing_behind(answers: Sequence[Answer]) -> list[_Lag]:
    """Lags that every answer shows with the same counts; with one answer only, those that are large."""
    common: list[_Lag] = []
    for number, answer in enumerate(answers):
        here = list(_lags(answer))
        common = here if number == 0 else [lag for lag in here if any(_same(lag, known) for known in common)]
    return common if len(answers) > 1 else [lag for lag in common if lag.by >= CERTAIN_LAG]


def _same(one: _Lag, other: _Lag) -> bool:
    places = [(lag.communicator, lag.member.rank, lag.kind, lag.by, lag.member.counts) for lag in (one, other)]
    return places[0] == places[1]


def _lags(answer: Answer) -> Iterator[_Lag]:
    for name, members in answer.communicators.items():
        most: defaultdict[str, int] = defaultdict(int)
        for member in members:
            for kind, count in member.counts:
                most[kind] = max(most[kind], count)
        for member in members:
            for kind, count in member.counts:
                if count < most[kind] and not member.missing:
                    yield _Lag(name, member, kind, most[kind] - count)


def _claims_of_behind(lags: list[_Lag], newest: Answer, ranks: Mapping[_Process, int]) -> Iterator[Claim]:
    """Who is behind somewhere and nowhere waits: who is ahead of others in a communicator is held up there by them."""
    late: defaultdict[str, set[_Process]] = defaultdict(set)
    for lag in lags:
        late[lag.communicator].add(_process(lag.member))
    waiting = {
        process
        for name, processes in late.items()
        for process in map(_process, newest.communicators.get(name, ()))
        if process not in processes
    }
    for lag in lags:
        process = _process(lag.member)
        if process not in waiting and (process in ranks or not ranks):
            op = public(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", lag.kind).lower())
            who = f"rank {ranks[process]}" if ranks else f"process {process[1]} on {process[0] or 'its host'}"
            text = f"{lag.kind} count of {who} is {lag.by} behind the others' in every answer"
            yield Claim(ClaimKind.BEHIND, (ranks[process],) if ranks else (), text, op=op)


def _claims_of_missing(answer: Answer, ranks: Mapping[_Process, int]) -> Iterator[Claim]:
    gone = {
        ranks[_process(member)]
        for members in answer.communicators.values()
        for member in members
        if member.missing and _process(member) in ranks
    }
    if gone:
        yield Claim(ClaimKind.ABSENT, tuple(sorted(gone)), "ncclras got no answer from them or takes them for dead")
