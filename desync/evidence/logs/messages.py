"""One small function for each kind of message, and the table that says which word calls for which."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from desync.evidence.logs import patterns as p
from desync.evidence.logs.departures import cancelled, death_signal, mpirun, undestroyed
from desync.evidence.logs.facts import (
    Barrier,
    Communicator,
    DumpSignal,
    Ended,
    Facts,
    Fingerprint,
    GroupTag,
    Joining,
    Lagging,
    Status,
    Timeout,
    Trouble,
)
from desync.evidence.logs.kernel import gpu_fault
from desync.evidence.logs.ray import ray_worker
from desync.evidence.logs.speakers import Line, nccl_head

MAX_FACTS = 100_000
MAX_TEXT = 300
_UNKNOWN_SIZE = 1 << 63


Handle = Callable[[Line, Facts], bool]


def group_tag(text: str) -> GroupTag | None:
    """The last group that a line names."""
    every = list(p.GROUP.finditer(text))
    if not every:
        return None
    found = every[-1]
    local = found["local"] or found["number"]
    description = found["named"] or found["described"]
    return GroupTag(
        rank=int(found["rank"]),
        local=int(local) if local is not None else None,
        guid=found["guid"] or None,
        description=description if description not in ("", "undefined", None) else None,
    )


def said_by_torch(line: Line) -> bool:
    """Whether the line has the head of torch's C++, or is an exception's: anything else may quote such a message."""
    return p.HEAD.search(line.text) is not None or line.text.startswith(("RuntimeError: ", "torch.distributed.", "  what(): "))


def timeout(line: Line, facts: Facts) -> bool:
    """The watchdog's (or a blocking wait's) time-out; the same one is told up to three times."""
    found = p.TIMEOUT.search(line.text)
    if found is None or not said_by_torch(line) or len(facts.timeouts) >= MAX_FACTS:
        return found is not None
    facts.xccl = facts.xccl or p.XCCL in line.text
    seq, group_rank = int(found["seq"]), int(found["rank"]) if found["rank"] else None
    tag = group_tag(line.text)
    for known in reversed(facts.timeouts[-64:]):
        if (known.speaker, known.seq, known.group_rank, known.op) == (line.speaker, seq, group_rank, found["op"]):
            return True
    facts.speakers[line.speaker] = None
    facts.timeouts.append(
        Timeout(
            speaker=line.speaker,
            order=line.order,
            time=line.time,
            group_rank=group_rank,
            tag=tag,
            seq=seq,
            op=found["op"],
            sizes=_sizes(found),
            limit_ms=int(found["limit"]),
            ran_ms=int(found["ran"]),
        )
    )
    return True


def _sizes(found: re.Match[str]) -> tuple[int | None, int | None]:
    if found["numel_in"] is not None:
        sizes = (int(found["numel_in"]), int(found["numel_out"]))
        return tuple(size if size < _UNKNOWN_SIZE else None for size in sizes)  # type: ignore[return-value]  # two of them
    if found["shape"]:
        numbers = [int(number) for number in found["shape"].split(",") if number.strip()]
        return (numbers[0], None) if len(numbers) == 1 else (None, None)
    return None, None


def status(line: Line, facts: Facts) -> bool:
    """Counters at a time-out."""
    found = p.STATUS.search(line.text)
    if found is None or not said_by_torch(line) or len(facts.statuses) >= MAX_FACTS:
        return False
    facts.speakers[line.speaker] = None
    facts.statuses.append(
        Status(
            line.speaker,
            group_tag(line.text),
            int(found["new"] or found["old"]),
            int(found["enqueued"]),
            int(found["completed"]),
        )
    )
    return True


def dump_signal(line: Line, facts: Facts) -> bool:
    """A monitor dumps because a time-out was told to it."""
    found = p.DUMP.search(line.text)
    if found is None or not said_by_torch(line) or len(facts.dumps) >= MAX_FACTS:
        return False
    facts.speakers[line.speaker] = None
    facts.dumps.append(
        DumpSignal(
            line.speaker,
            line.time,
            group_tag(line.text),
            int(found["enqueued"]),
            int(found["completed"]),
            own=found["who"] == "this local rank",
        )
    )
    return True


def observer(line: Line, facts: Facts) -> bool:
    """A rank that has not timed out itself."""
    if not said_by_torch(line) or len(facts.observers) >= MAX_FACTS:
        return False
    facts.speakers[line.speaker] = None
    facts.observers.append(line.speaker)
    return True


def lagging(line: Line, facts: Facts) -> bool:
    """A line of the desync report."""
    found = p.DESYNC_LAGGING.search(line.text)
    never = p.DESYNC_NEVER.search(line.text) if found is None else None
    match = found or never
    if match is None or len(facts.lagging) >= MAX_FACTS:
        return False
    known = facts.timeouts[-1] if facts.timeouts else None
    facts.lagging.append(
        Lagging(
            speaker=known.speaker if known is not None else line.speaker,
            tag=group_tag(line.text),
            ranks=_numbers(match["ranks"]),
            finished=int(found["finished"]) if found is not None else 0,
            missing=int(found["missing"]) if found is not None else 1,
        )
    )
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d{1,7}", text))


def fingerprint(line: Line, facts: Facts) -> bool:
    """What DETAIL's wrapper prints; only a rank's print of its own operation is right."""
    found = p.MISMATCH.search(line.text)
    running = p.RUNNING.search(line.text) if found is None else None
    match = found or running
    if p.REFUSED in line.text and said_by_torch(line) and len(facts.refused) < MAX_FACTS:
        facts.refused[line.order] = None
    if match is None or not said_by_torch(line):
        return False
    printed = p.FINGERPRINT.search(line.text, match.start())
    if printed is None:
        return False
    facts.speakers[line.speaker] = None
    own = _fingerprint(line, int(match[1]), printed, found)
    kept = facts.printed.setdefault((line.speaker, own.group_rank), [])
    kept.append(own)
    del kept[:-KEPT_FINGERPRINTS]
    return True


KEPT_FINGERPRINTS = 3


def _fingerprint(line: Line, rank: int, found: re.Match[str], mismatch: re.Match[str] | None) -> Fingerprint:
    shapes = re.findall(r"\[([\d, ]*)\]", found["shapes"] or "")
    return Fingerprint(
        speaker=line.speaker,
        order=line.order,
        time=line.time,
        group_rank=rank,
        seq=int(found[1]) + 1,
        op=found[2],
        shapes=tuple(tuple(int(size) for size in shape.split(",") if size.strip()) for shape in shapes[:64]),
        dtypes=tuple(name.strip() for name in (found["dtypes"] or "").split(",") if name.strip())[:64],
        mismatch=mismatch is not None,
        other=int(mismatch[3]) if mismatch is not None and mismatch[3] is not None else None,
    )


def barrier(line: Line, facts: Facts) -> bool:
    """monitored_barrier's own words: rank 0's list, or a rank that did reach it."""
    missing = p.BARRIER_MISSING.search(line.text)
    reached = p.BARRIER_REACHED.search(line.text) if missing is None else None
    if (missing is None and reached is None) or not said_by_torch(line) or len(facts.barriers) >= MAX_FACTS:
        return False
    facts.barriers.append(
        Barrier(
            speaker=line.speaker,
            order=line.order,
            time=line.time,
            by=int(missing[1]) if missing is not None else None,
            missing=_numbers(missing[2]) if missing is not None else (),
            reached=int(reached[1]) if reached is not None else None,
            text=(missing or reached or re.match("", ""))[0][:MAX_TEXT],  # type: ignore[index]  # one of the two matched
        )
    )
    return True


def failed(line: Line, facts: Facts) -> bool:
    """torchelastic's line about one process, where its summary does not come."""
    found = p.FAILED.search(line.text)
    if found is None:
        return False
    ended = Ended(line.speaker, line.order, line.time, int(found[1]), None, int(found[2]), int(found[3]), None)
    facts.ended.append(ended)
    return True


def spawned(line: Line, facts: Facts) -> bool:
    """torch.multiprocessing.spawn says how one of its processes ended, whose number is its rank."""
    found = p.SPAWNED_ENDED.search(line.text)
    if found is None:
        return False
    number = getattr(signal, found[2], None) if found[2] is not None else None
    code = int(found[3]) if found[3] is not None else -int(number) if number is not None else -signal.SIGKILL
    facts.ended.append(Ended(line.speaker, line.order, line.time, code, int(found[1]), None, None, None, root=True))
    return True


def closing(line: Line, facts: Facts) -> bool:
    """The launcher ends a process itself."""
    found = p.CLOSING.search(line.text) or p.FORCED.search(line.text)
    if found is None:
        return False
    if len(facts.signalled) < MAX_FACTS:
        facts.signalled[(line.speaker.file, int(found[1]))] = None
    return True


def joining(line: Line, facts: Facts) -> bool:
    """A rank in the rendezvous; of a rank's many lines the last counts."""
    found = p.JOINING.search(line.text)
    if found is None:
        return False
    rank = found["rank"] or found["late"]
    new = Joining(
        speaker=line.speaker,
        order=line.order,
        rank=int(rank) if rank else None,
        world=int(found["world"]),
        came=int(found["came"]),
        key=int(found["key"]),
        time=line.time,
        gave_up=found["gave_up"] is not None,
    )
    kept = facts.rendezvous.setdefault(new.key, {})
    if len(kept) < MAX_FACTS and len(facts.rendezvous) < MAX_FACTS:
        kept[(new.rank, line.speaker.rank)] = new
    return True


def joined(line: Line, facts: Facts) -> bool:
    """All have come: what was said while some were awaited is of no more use."""
    found = p.JOINED.search(line.text)
    if found is None:
        return False
    facts.rendezvous.pop(int(found[1]), None)
    return True


def clients(line: Line, facts: Facts) -> bool:
    """The store says how many came, and names nobody."""
    found = p.CLIENTS.search(line.text)
    if found is None:
        return False
    rank = line.speaker.rank
    new = Joining(line.speaker, line.order, rank, int(found[3]), int(found[2]), 1, line.time, gave_up=True)
    kept = facts.rendezvous.setdefault(1, {})
    if len(kept) < MAX_FACTS:
        kept[(rank, rank)] = new
    return True


def communicator(line: Line, facts: Facts) -> bool:
    """Which process is which rank of a communicator."""
    found, head = p.COMMUNICATOR.search(line.text), nccl_head(line.text)
    if found is None or head is None or len(facts.communicators) >= MAX_FACTS:
        return False
    facts.communicators.append(Communicator(head[0], head[1], int(found[1]), int(found[2])))
    facts.speakers[line.speaker] = None
    return True


def _trouble(kind: str, pattern: re.Pattern[str], torch_only: bool = False) -> Handle:
    """A handler for lines that stand for themselves."""

    def handle(line: Line, facts: Facts) -> bool:
        found = pattern.search(line.text)
        if found is None or (torch_only and not said_by_torch(line)) or len(facts.troubles) >= MAX_FACTS:
            return False
        head = nccl_head(line.text)
        groups = [group for group in found.groups() if group is not None]
        pid = int(groups[0]) if kind == "kernel" and groups else head[1] if head is not None else None
        facts.troubles.append(
            Trouble(kind, line.speaker, line.order, line.time, found[0].strip()[:MAX_TEXT], pid, head[0] if head else None)
        )
        return True

    return handle


def network(line: Line, facts: Facts) -> bool:
    """NCCL's words about the network."""
    place = line.text.find(p.NETWORK_WORD)
    found = p.NETWORK.match(line.text[place : place + MAX_TEXT]) if place >= 0 else None
    if found is None or len(facts.troubles) >= MAX_FACTS:
        return False
    host, pid = nccl_head(line.text[:place]) or (None, None)
    facts.troubles.append(Trouble("network", line.speaker, line.order, line.time, found[0].strip(), pid, host))
    return True


def out_of_memory(line: Line, facts: Facts) -> bool:
    """A message about device memory; the GPU that it names is one of the process's node."""
    if p.OUT_OF_MEMORY.search(line.text) is None or len(facts.troubles) >= MAX_FACTS:
        return False
    gpu = p.GPU.search(line.text)
    number = int(gpu[1] or gpu[2]) if gpu is not None else None
    facts.troubles.append(
        Trouble("out_of_memory", line.speaker, line.order, line.time, line.text.strip()[:MAX_TEXT], number=number)
    )
    return True


def srun(line: Line, facts: Facts) -> bool:
    """srun's words for the end of tasks; of several at once they are its clean-up."""
    found = p.SRUN.search(line.text)
    if found is None:
        return False
    tasks = _numbers(found[2])[:64]
    if "Out Of Memory" in found[3]:
        for task in tasks:
            facts.tasks = max(facts.tasks, task)
            facts.troubles.append(
                Trouble("srun_memory", line.speaker, line.order, line.time, found[0][:MAX_TEXT], host=found[1], number=task)
            )
    elif len(tasks) == 1 and len(facts.ended) < MAX_FACTS and (end := p.SRUN_END.match(found[3])) is not None:
        facts.tasks = max(facts.tasks, *tasks)
        code = int(end[2]) if end[2] is not None else -_SIGNALS[end[1]]
        facts.ended.append(Ended(line.speaker, line.order, line.time, code, None, None, None, found[1], task=tasks[0]))
    elif len(tasks) > 1 and len(facts.troubles) < MAX_FACTS and (end := p.SRUN_END.match(found[3])) is not None:
        code = int(end[2]) if end[2] is not None else -_SIGNALS[end[1]]
        facts.troubles.append(
            Trouble("srun_end", line.speaker, line.order, line.time, found[0].strip()[:MAX_TEXT], host=found[1], number=code)
        )
    return True


_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Killed": signal.SIGKILL,
}


def world(line: Line, facts: Facts) -> bool:
    """Sizes and versions that programs print at their start."""
    found = p.WORLD.search(line.text)
    if found is not None and len(facts.world_sizes) < MAX_FACTS:
        facts.world_sizes.append(int(found[1]))
    if facts.torch is None and (version := p.TORCH.search(line.text)) is not None:
        facts.torch = version[1]
    return False


MESSAGES: tuple[tuple[str, Handle], ...] = (
    ("world_size", world),
    ("world size", world),
    ("collective operation timeout", timeout),
    ("ork", status),
    ("dump signal due to", dump_signal),
    ("to dump the debug info", dump_signal),
    (p.OBSERVED, observer),
    ("collective", lagging),
    ("CollectiveFingerPrint", fingerprint),
    (p.REFUSED, fingerprint),
    ("onitoredBarrier", barrier),
    ("exitcode", failed),
    ("ProcessExitedException", spawned),
    ("closing signal", closing),
    ("death signal", death_signal),
    ("SignalException", death_signal),
    ("forcefully", closing),
    ("destroy", undestroyed),
    ("store_based_barrier_key", joining),
    ("Completed store-based barrier", joined),
    ("client socket has timed out", _trouble("no_server", p.NO_SERVER)),
    ("clients joined", clients),
    ("Init COMPLETE", communicator),
    ("world_rank=", ray_worker),
    ("port active", _trouble("network_back", p.NETWORK_BACK)),
    ("NCCL WARN", network),
    ("closed by remote peer", _trouble("peer_gone", p.PEER_GONE)),
    ("heartbeat", _trouble("heartbeat", p.HEARTBEAT, torch_only=True)),
    ("watchdog", _trouble("heartbeat", p.HEARTBEAT, torch_only=True)),
    ("Heartbeat", _trouble("heartbeat", p.HEARTBEAT, torch_only=True)),
    ("NCCL", _trouble("nccl_error", p.NCCL_ERROR, torch_only=True)),
    ("HIP error", _trouble("cuda_error", p.CUDA_ERROR, torch_only=True)),
    ("CUDA", _trouble("cuda_error", p.CUDA_ERROR, torch_only=True)),
    (p.GIL, _trouble("gil", re.compile(re.escape(p.GIL) + r".{0,100}"), torch_only=True)),
    ("Killed", _trouble("kernel", p.KERNEL)),
    ("oom-kill", _trouble("kernel", p.KERNEL)),
    ("oom_kill", _trouble("oom_events", p.OOM_EVENTS)),
    ("NVRM: Xid", gpu_fault),
    ("CANCELLED AT ", cancelled),
    ("srun: ", srun),
    ("exited on signal", mpirun),
    ("emory", out_of_memory),
    ("OutOfMemoryError", out_of_memory),
)
"""A word that is in every line of a kind, and the function for it; the first that takes a line ends the search."""
