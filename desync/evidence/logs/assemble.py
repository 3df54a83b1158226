"""From the facts of one run's logs to traces: operations as far as they are known, exceptions and exits."""

from __future__ import annotations

import re
import signal
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from desync.evidence.flight_recorder.names import dtype, public
from desync.evidence.frames import call_site
from desync.evidence.logs.facts import Facts, Status, Timeout
from desync.evidence.logs.failures import Failures, failures
from desync.evidence.logs.patterns import OWN_XIDS
from desync.evidence.logs.ranks import DEFAULT, Ranks, group_name, resolve, wrappers_group
from desync.evidence.logs.speakers import Speaker
from desync.evidence.logs.statements import statements
from desync.model import Call, CallSite, Claim, Exit, Group, Kind, Mark, OperationTable, Tensors, Trace

UNKNOWN = Call(op="unrecorded", kind=Kind.COLLECTIVE)
MAX_SILENT = 4096
"""In a job of more ranks than this those of which a log says nothing get no trace."""
MAX_AHEAD = 64
"""So many of the operations that a rank has enqueued behind the stuck one are shown."""
FAR = 1000
"""A counter that is further off than this is of something else (p2p, another group), whatever it is called."""
GLOO_TIMEOUT = re.compile(r"Timed out waiting \d+ms for (?:recv|send) operation|Application timeout caused pair closure")
MAX_GPU_FAULTS = 4
STACK_SWITCH = "TORCH_FR_BUFFER_SIZE set to 2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.9)"
P2P = frozenset({"send", "recv"})


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """What the logs of one run come to."""

    traces: tuple[Trace, ...]
    claims: tuple[Claim, ...]
    world_size: int | None
    torch: str | None
    nodes: tuple[str, ...]
    notes: tuple[str, ...]
    failed: bool
    finished: bool
    """The program said at the end that its work was done."""


@dataclass(slots=True)
class _Row:
    group: str
    seq: int
    call: Call
    entered: int | None
    completed: int
    """0: not over; 1: over; negative: failed at minus this time."""


@dataclass(slots=True)
class _Draft:
    rank: int
    rows: list[_Row] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    """Those of the rows."""
    failed: set[tuple[str, int]] = field(default_factory=set)
    """Group and number of the rows that failed."""
    marks: list[Mark] = field(default_factory=list)
    exit: Exit | None = None
    node: str | None = None
    pid: int | None = None

    def add(self, *rows: _Row) -> None:
        """Put rows behind the others."""
        self.rows += rows
        self.groups.update(row.group for row in rows)
        self.failed.update((row.group, row.seq) for row in rows if row.completed < 0)


def assemble(facts: Facts) -> LogEvidence:
    """The traces and claims of one run."""
    ranks = resolve(facts)
    drafts: dict[int, _Draft] = {}
    _add_timeouts(drafts, facts, ranks)
    _add_dump_signals(drafts, facts, ranks)
    _add_lagging(drafts, facts, ranks)
    _add_fingerprints(drafts, facts, ranks)
    ends = failures(facts, ranks)
    _add_gloo_waits(drafts, ends, ranks.world)
    _add_ends(drafts, ends)
    if not facts.failed and not facts.troubles and ranks.world <= MAX_SILENT:
        for rank in range(ranks.world):
            _draft(drafts, rank)
    claims = statements(facts, ranks, ends)
    members = {name: frozenset(group.ranks) for name, group in ranks.groups.items()}
    return LogEvidence(
        traces=tuple(_trace(drafts[rank], _groups_of(ranks, rank, members), ranks.world) for rank in sorted(drafts)),
        claims=claims,
        world_size=ranks.world or None,
        torch=facts.torch,
        nodes=tuple(sorted({each.host for each in facts.communicators} | {each.host for each in facts.ended if each.host})),
        notes=tuple(_notes(facts, ranks)),
        failed=facts.failed,
        finished=facts.finished is not None,
    )


def _draft(drafts: dict[int, _Draft], rank: int) -> _Draft:
    return drafts.setdefault(rank, _Draft(rank))


def _add_timeouts(drafts: dict[int, _Draft], facts: Facts, ranks: Ranks) -> None:
    """The operation that timed out, the one before it, and those enqueued behind it."""
    statuses: defaultdict[tuple[Speaker, int], list[Status]] = defaultdict(list)
    for each in facts.statuses:
        statuses[(each.speaker, each.work)].append(each)
    usual = sorted(timeout.seq for timeout in facts.timeouts)[len(facts.timeouts) // 2] if facts.timeouts else 0
    for index, timeout in enumerate(facts.timeouts):
        rank = ranks.of_tagged(timeout.speaker, timeout.tag, timeout.group_rank)
        if rank is None:
            continue
        queue = statuses[(timeout.speaker, timeout.seq)][:MAX_AHEAD]
        status = next((one for one in queue if timeout.group_rank in (None, one.tag.rank if one.tag else None)), None)
        tag = timeout.tag or (status.tag if status is not None else None)
        group = group_name(tag, rank, timeout.group_rank)
        if tag is None and abs(timeout.seq - usual) > FAR:
            group = f"unnamed #{timeout.seq // FAR}"  # counters so far apart are of different groups, not of a lag
        draft = _draft(drafts, rank)
        if (group, timeout.seq) in draft.failed:
            continue
        call = _call(timeout, facts, index)
        end = timeout.time or timeout.order
        if status is not None and status.completed == timeout.seq - 1 > 0 and call.kind is Kind.COLLECTIVE:
            draft.add(_Row(group, timeout.seq - 1, UNKNOWN, None, 1))
        draft.add(_Row(group, timeout.seq, call, _entered(timeout), -end))
        if status is not None and call.kind is Kind.COLLECTIVE and 0 < status.enqueued - timeout.seq < FAR:
            ahead = range(timeout.seq + 1, min(status.enqueued, timeout.seq + MAX_AHEAD) + 1)
            draft.add(*(_Row(group, seq, UNKNOWN, None, 0) for seq in ahead))


def _entered(timeout: Timeout) -> int | None:
    """When the operation was called; a watchdog that came far too late has measured nothing."""
    if timeout.time is None or timeout.ran_ms > 2 * timeout.limit_ms:
        return None
    return timeout.time - timeout.ran_ms * 1_000_000


def _call(timeout: Timeout, facts: Facts, index: int) -> Call:
    op = public(timeout.op)
    if op == "coalesced":
        return replace(UNKNOWN, site=_site(facts, index))
    shapes = [() if size is None else ((size,),) for size in timeout.sizes]
    return Call(
        op=op,
        kind=Kind.P2P if op in P2P else Kind.COLLECTIVE,
        inputs=Tensors(shapes=shapes[0]),
        outputs=Tensors(shapes=shapes[1]),
        site=_site(facts, index),
    )


def _site(facts: Facts, index: int) -> CallSite | None:
    frames = facts.stacks.get((index, 0))
    return call_site([(frame.function, frame.file, frame.line) for frame in frames]) if frames else None


def _add_dump_signals(drafts: dict[int, _Draft], facts: Facts, ranks: Ranks) -> None:
    """The default group's counters, of ranks whose own time-out does not already tell them."""
    stuck = [row.seq for draft in drafts.values() for row in draft.rows if row.group == DEFAULT and row.completed < 0]
    for dump in facts.dumps:
        rank = ranks.of_tagged(dump.speaker, dump.tag, dump.tag.rank if dump.tag is not None else None)
        if rank is None or dump.enqueued < 1:
            continue
        draft = _draft(drafts, rank)
        if DEFAULT in draft.groups:
            continue
        if stuck and abs(min(stuck) - dump.enqueued) > FAR:
            continue
        completed = dump.completed if dump.completed <= dump.enqueued else 0  # 2.3 prints an uninitialised number
        if completed > 0:
            draft.add(_Row(DEFAULT, completed, UNKNOWN, None, 1))
        behind = range(max(completed, 0) + 1, min(dump.enqueued, completed + MAX_AHEAD) + 1) if completed >= 0 else ()
        draft.add(*(_Row(DEFAULT, seq, UNKNOWN, None, 0) for seq in behind))
    for speaker in facts.observers:
        rank = ranks.of(speaker)
        if rank is not None:
            _draft(drafts, rank)


def _add_lagging(drafts: dict[int, _Draft], facts: Facts, ranks: Ranks) -> None:
    """Ranks that the desync report puts behind: what they finished last."""
    for each in facts.lagging:
        speaker = ranks.of(each.speaker)
        group = group_name(each.tag, speaker) if each.tag is not None else _group_of_timeout(drafts, speaker)
        for group_rank in each.ranks:
            rank = ranks.member(group, group_rank)
            if rank is None:
                continue
            draft = _draft(drafts, rank)
            if each.finished > 0 and group not in draft.groups:
                draft.add(_Row(group, each.finished, UNKNOWN, None, 1))


def _group_of_timeout(drafts: dict[int, _Draft], rank: int | None) -> str:
    rows = drafts[rank].rows if rank in drafts else []
    return next((row.group for row in reversed(rows) if row.completed < 0), DEFAULT)


def _add_fingerprints(drafts: dict[int, _Draft], facts: Facts, ranks: Ranks) -> None:
    """What each rank ran in its group, as the wrapper of DETAIL prints it."""
    for each in sorted(facts.fingerprints, key=lambda one: (one.seq, one.mismatch)):
        rank = ranks.of(each.speaker, each.group_rank)
        if rank is None:
            continue
        group = wrappers_group(rank, each.group_rank)
        draft = _draft(drafts, rank)
        time = each.time or each.order
        op = public(each.op)
        call = Call(
            op="barrier" if op == "barrier" else op,
            kind=Kind.COLLECTIVE,
            inputs=Tensors(each.shapes, tuple(dtype(name) for name in each.dtypes)),
            is_async=False,
        )
        known = next((row for row in draft.rows if row.group == group and row.seq == each.seq), None)
        if known is not None:
            known.completed = -time if each.mismatch else known.completed
            continue
        draft.add(_Row(group, each.seq, call, time - 1, -time if each.mismatch else 0))
    _settle_fingerprints(drafts)


def _settle_fingerprints(drafts: dict[int, _Draft]) -> None:
    """All but the newest operation that a wrapper printed are over: it lets one at a time through."""
    for draft in drafts.values():
        newest: dict[str, int] = {}
        for row in draft.rows:
            newest[row.group] = max(newest.get(row.group, 0), row.seq)
        for row in draft.rows:
            if row.call.is_async is False and row.completed == 0 and row.seq < newest[row.group]:
                row.completed = row.entered or 1


def _add_gloo_waits(drafts: dict[int, _Draft], ends: Failures, world: int) -> None:
    """gloo's time-outs name no operation and no number; the lines of Python above them name the call.

    Only if all of them stand in the same call they are taken for the same operation; it gets number 1.  If all ranks of the job
    wait and one of them in another call, that is a guess at what went wrong: there is no time at which it began.
    """
    waits = [
        (rank, mark) for rank, mark in ends.marks if mark.failure is not None and GLOO_TIMEOUT.search(mark.failure.message)
    ]
    calls = Counter(_python_call(mark) for _, mark in waits)
    guessed = len(calls) == 2 and len({rank for rank, _ in waits}) == world and min(calls.values()) == 1
    if None in calls or not (len(calls) == 1 or guessed) or (guessed and not P2P.isdisjoint(calls)):
        return
    for rank, mark in waits:
        draft, op = _draft(drafts, rank), _python_call(mark)
        if not draft.rows and op is not None:
            kind = Kind.P2P if op in P2P else Kind.COLLECTIVE
            entered = None if guessed else mark.time - 1
            draft.add(_Row(DEFAULT, 1, Call(op=op, kind=kind, site=mark.site), entered, -mark.time))


def _python_call(mark: Mark) -> str | None:
    """The function of torch.distributed in which an exception was raised."""
    frames = mark.failure.frames if mark.failure is not None else ()
    inside = [frame.function for frame in frames if frame.file.endswith("distributed_c10d.py") and frame.function != "wrapper"]
    return inside[0] if inside else None


def _add_ends(drafts: dict[int, _Draft], ends: Failures) -> None:
    for rank, mark in ends.marks:
        _draft(drafts, rank).marks.append(mark)
    for rank, exit_, node, pid in ends.exits:
        if exit_.code == -signal.SIGTERM and rank not in drafts:
            continue  # the launcher ended it, and it has left no word: it is as unknown as if there were no summary
        draft = _draft(drafts, rank)
        draft.exit, draft.node, draft.pid = exit_, node, pid


def _groups_of(ranks: Ranks, rank: int, members: Mapping[str, frozenset[int]]) -> dict[str, Group]:
    return {name: group for name, group in ranks.groups.items() if rank in members[name]}


def _trace(draft: _Draft, mine: dict[str, Group], world: int) -> Trace:
    rows = sorted(draft.rows, key=lambda row: (row.entered is None and row.completed <= 0, row.entered or 0))
    calls = {call: number for number, call in enumerate(dict.fromkeys(row.call for row in rows))}
    groups = {group: number for number, group in enumerate(dict.fromkeys(row.group for row in rows))}

    def column(values: Iterable[int]) -> array[int]:
        return array("q", values)

    table = OperationTable(
        calls=tuple(calls),
        groups=tuple(groups),
        call=column(calls[row.call] for row in rows),
        group=column(groups[row.group] for row in rows),
        seq=column(row.seq for row in rows),
        thread=column(0 for _ in rows),
        entered=column(row.entered or 0 for row in rows),
        returned=column(0 for _ in rows),
        completed=column(row.completed for row in rows),
    )
    return Trace(
        rank=draft.rank,
        operations=table,
        marks=tuple(sorted(draft.marks, key=lambda mark: mark.time)),
        groups=mine,
        exit=draft.exit,
        node=draft.node,
        pid=draft.pid,
        world_size=world or None,
    )


def _switches(facts: Facts) -> Iterable[str]:
    """What would have made torch and NCCL say more."""
    messages = [each.message for each in facts.tracebacks]
    gloo = facts.sizes_differ or any(GLOO_TIMEOUT.search(message) for message in messages)
    if gloo and not facts.printed:
        yield (
            "gloo's errors name neither group nor number; with TORCH_DISTRIBUTED_DEBUG set to DETAIL torch compares what ranks "
            "call and says who differs"
        )
    if any(each.kind == "nccl_error" for each in facts.troubles) and not any(each.kind == "network" for each in facts.troubles):
        yield "NCCL's own lines are not in the log; NCCL_DEBUG set to WARN and NCCL_DEBUG_FILE keep them"
    unused = [message for message in messages if "Expected to have finished reduction" in message]
    if unused and not any("Parameters which did not" in message for message in unused):
        yield "the log does not name the parameters; TORCH_DISTRIBUTED_DEBUG set to INFO makes DDP name them"


def _gpu_faults(facts: Facts, ranks: Ranks) -> Iterable[str]:
    """What the kernel says of GPUs: a note, because the line names a device, at best a process, and never who is to blame.

    NVIDIA's codes are as often a consequence (the program's own mistake, the end of its process) as the cause.
    """
    faults = sorted(facts.gpu_faults, key=lambda fault: fault.code in OWN_XIDS)  # those of the hardware first
    for each in faults[:MAX_GPU_FAULTS]:
        rank = ranks.by_pid.get((each.host, each.pid)) if each.pid is not None else None
        if rank is None and ranks.single_node:  # elsewhere the same number may be another node's process
            rank = ranks.of_pid(each.pid)
        user = f", used by rank {rank}" if rank is not None else f", used by process {each.pid}" if each.pid is not None else ""
        host = f" of {each.host}" if each.host is not None else ""
        usual = "; as a rule the program's own doing" if each.code in OWN_XIDS else ""
        yield f"the kernel reports an error of GPU {each.bus}{host}{user}: NVIDIA's Xid {each.code}{usual}"
    if len(faults) > MAX_GPU_FAULTS:
        yield f"{len(faults) - MAX_GPU_FAULTS} more errors of GPUs (NVIDIA's Xid) stand in the log"


def _notes(facts: Facts, ranks: Ranks) -> Iterable[str]:
    yield from _gpu_faults(facts, ranks)
    if facts.timeouts and not facts.statuses:
        yield "the log does not say which group an operation belongs to; torch 2.3 and newer do"
    yield from _switches(facts)
    if handled := sum(each.handled for each in facts.tracebacks):
        yield f"after {handled} traceback{'s' if handled > 1 else ''} work went on for a while: taken for caught"
    if facts.survived:
        yield "the log holds errors after which the job went on and ended well; they were not taken for faults"
    open_end = facts.worked_on and facts.finished is None and not facts.failed
    if open_end and (left := sorted({rank for each in facts.left if (rank := ranks.of(each)) is not None})):
        who = f"rank{'s' if len(left) > 1 else ''} {', '.join(map(str, left[:8]))}"
        yield f"{who} left the program, as torch warns, and work was told of after that: {facts.worked_on.strip()[:100]}"
    if facts.repeated:
        yield f"Ray has folded {facts.repeated} lines away; RAY_DEDUP_LOGS set to 0 keeps those of all ranks"
    if facts.timeouts and not facts.stacks:
        yield f"no stack of the stuck operation; {STACK_SWITCH} adds it"
    if ranks.inferred:
        yield f"members of group {', '.join(sorted(ranks.inferred)[:8])} were partly inferred from the distances of its ranks"
    if any(dump.enqueued > 0 for dump in facts.dumps):
        yield "the counters of the dump signal are those of the default group, whichever group the time-out was in"
