"""Logs of made-up jobs in the wordings of torch 1.13 to 2.13, with the prefixes of different launchers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

VERSIONS = ("1.13", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.9")
Prefix = Callable[[int], str]


def version_at_least(version: str, least: str) -> bool:
    return tuple(map(int, version.split("."))) >= tuple(map(int, least.split(".")))


@dataclass(frozen=True)
class Stuck:
    """One rank's view of the operation that it timed out in."""

    rank: int
    seq: int
    op: str = "ALLREDUCE"
    elements: int = 1024
    group_rank: int | None = None
    guid: str = "0"
    local: int = 0
    description: str = "default_pg"
    enqueued: int | None = None

    @property
    def in_group(self) -> int:
        return self.rank if self.group_rank is None else self.group_rank


def head(version: str, level: str, rank: int, file: str = "ProcessGroupNCCL.cpp", second: int = 0) -> str:
    own = f"[rank{rank}]:" if version_at_least(version, "2.2") else ""
    if not version_at_least(version, "2.4"):
        return f"{own}[{level} {file}:523] "
    return f"{own}[{level}1202 11:25:{second:02d}.161799497 {file}:523] "


def tag(version: str, stuck: Stuck) -> str:
    if not version_at_least(version, "2.3"):
        return ""
    if version == "2.3":
        return f"[PG {stuck.local} Rank {stuck.in_group}] "
    if version == "2.4":
        return f"[PG {stuck.local} ({stuck.description}) Rank {stuck.in_group}] "
    return f"[PG ID {stuck.local} PG GUID {stuck.guid}({stuck.description}) Rank {stuck.in_group}] "


def timeout_lines(version: str, stuck: Stuck) -> Iterable[str]:
    """What one rank prints when its watchdog gives up."""
    sizes = f" NumelIn={stuck.elements}, NumelOut={stuck.elements}," if version_at_least(version, "2.1") else ""
    work = f"WorkNCCL(SeqNum={stuck.seq}, OpType={stuck.op},{sizes} Timeout(ms)=600000)"
    ran = "ran for 600042 milliseconds before timing out."
    caught = f"[Rank {stuck.in_group}] Watchdog caught collective operation timeout: {work} {ran}"
    first = head(version, "E", stuck.rank)
    yield f"{first}{caught}"
    group = tag(version, stuck)
    enqueued = stuck.enqueued or stuck.seq + 3
    if version in ("2.3", "2.4", "2.5"):
        counters = f"last enqueued NCCL work: {enqueued}, last completed NCCL work: {stuck.seq - 1}."
        yield f"{first}{group}Timeout at NCCL work: {stuck.seq}, {counters}"
    elif version_at_least(version, "2.6"):
        yield (
            f"{first}{group} failure detected by watchdog at work sequence id: {stuck.seq} PG status: "
            f"last enqueued work: {enqueued}, last completed work: {stuck.seq - 1}"
        )
    yield f"{first}[Rank {stuck.in_group}] To avoid data inconsistency, we are taking the entire process down."
    ended = f"{group}Process group watchdog thread terminated with exception: {caught}"
    yield f"{first}{ended}"
    yield "Exception raised from checkTimeout at /torch/csrc/ProcessGroupNCCL.cpp:618 (most recent call first):"
    yield "frame #0: c10::Error::Error(c10::SourceLocation) + 0xa8 (0x7fe82ae000a8 in /env/torch/lib/libc10.so)"
    yield ""
    yield "terminate called after throwing an instance of 'c10::DistBackendError'"
    yield f"  what():  {ended}"


def bare(_rank: int) -> str:
    return ""


def srun(rank: int) -> str:
    return f"{rank:2d}: "


def tee(ranks_of_node: int) -> Prefix:
    return lambda rank: f"[default{rank % ranks_of_node}]:"


def ray(rank: int) -> str:
    return f"\x1b[36m(WorkerDict pid={5000 + rank})\x1b[0m "


def container(rank: int) -> str:
    return f"2025-12-02T11:25:09.{rank:09d}Z stderr F "


def log(parts: Iterable[tuple[int, Iterable[str]]], prefix: Prefix = bare, world: int | None = None) -> str:
    """The lines of all ranks one behind the other, each with its launcher's prefix."""
    lines = [f"world_size={world} backend=nccl"] if world is not None else []
    for rank, own in parts:
        lines += [f"{prefix(rank)}{line}" for line in own]
    return "\n".join(lines) + "\n"
