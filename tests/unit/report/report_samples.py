"""Jobs made by hand, as evidence and diagnosis, for the tests of the report."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from desync.model import (
    AtDivergence,
    Call,
    CallSite,
    Cause,
    Certainty,
    Diagnosis,
    Divergence,
    Evidence,
    Exit,
    Failure,
    Finding,
    Frame,
    Group,
    Job,
    Kind,
    Mark,
    MarkKind,
    Operation,
    OperationState,
    OperationTable,
    Progress,
    RankStacks,
    RankState,
    Stack,
    Status,
    Tensors,
    Trace,
)
from desync.report.build import build_report
from desync.report.model import Report, Timing

START = 1_764_504_184_250_000_000  # 2025-11-30 12:03:04.25 UTC
PROJECT = "/data/ada/project"
SITE_PACKAGES = "/opt/env/lib/python3.11/site-packages"
MS = 1_000_000


def frame(function: str, file: str, line: int) -> Frame:
    return Frame(function, f"{PROJECT}/{file}", line)


LOOP = CallSite((frame("train_epoch", "train.py", 42), frame("main", "train.py", 80)))
SAVE = CallSite((frame("save", "checkpoint.py", 18), frame("train_epoch", "train.py", 51), frame("main", "train.py", 80)))
GRADIENTS = Call(
    "all_reduce",
    Kind.COLLECTIVE,
    inputs=Tensors(((20,),), ("float32",)),
    reduce_op="sum",
    site=LOOP,
    bucket="DDP bucket 0: fc.weight, fc.bias",
)
SECOND_BUCKET = replace(GRADIENTS, inputs=Tensors(((400,),), ("float32",)), bucket="DDP bucket 1: emb.weight")
BACKWARD = (
    Frame("syscall", "libc.so.6", 0),
    Frame("_engine_run_backward", f"{SITE_PACKAGES}/torch/autograd/graph.py", 869),
    Frame("backward", f"{SITE_PACKAGES}/torch/autograd/__init__.py", 347),
    Frame("backward", f"{SITE_PACKAGES}/torch/_tensor.py", 625),
    *LOOP.frames,
    frame("<module>", "train.py", 91),
)


@dataclass(frozen=True)
class Step:
    """One operation of a made rank; ``done`` None: it is still inside."""

    call: Call
    seq: int
    group: str = "default_pg"
    done: bool | None = True
    failed: bool = False


def steps(call: Call, count: int, pending: bool = False, group: str = "default_pg") -> list[Step]:
    """``count`` operations that went through, then one that did not if ``pending``."""
    made = [Step(call, seq, group) for seq in range(1, count + 1)]
    return [*made, Step(call, count + 1, group, done=None)] if pending else made


def table(made: Sequence[Step]) -> OperationTable:
    calls = tuple(dict.fromkeys(step.call for step in made))
    groups = tuple(dict.fromkeys(step.group for step in made))
    entered = [START + 10 * MS * number for number in range(len(made))]
    finished = [time + MS if step.done else 0 for step, time in zip(made, entered, strict=True)]
    return OperationTable(
        calls=calls,
        groups=groups,
        call=array("q", [calls.index(step.call) for step in made]),
        group=array("q", [groups.index(step.group) for step in made]),
        seq=array("q", [step.seq for step in made]),
        thread=array("q", [1] * len(made)),
        entered=array("q", entered),
        returned=array("q", finished),
        completed=array(
            "q", [-time - MS if step.failed else done for step, time, done in zip(made, entered, finished, strict=True)]
        ),
    )


def trace(rank: int, made: Sequence[Step], **more: object) -> Trace:
    return replace(Trace(rank=rank, operations=table(made), pid=4310 + rank, node="gpu-1"), **more)


def at(made: Trace, seq: int, state: OperationState, group: str = "default_pg") -> AtDivergence:
    """Where a made rank stands: its operation of that number, if it has one."""
    found: Operation | None = next(
        (row for row in made.operations.rows(made.rank) if row.seq == seq and row.group == group), None
    )
    return AtDivergence(state, found)


@dataclass(frozen=True)
class Sample:
    """A job and what was found in it."""

    evidence: Evidence
    diagnosis: Diagnosis
    timing: Timing = field(default_factory=Timing)

    def report(self) -> Report:
        return build_report(self.evidence, self.diagnosis, self.timing)


def job(world_size: int, **more: object) -> Job:
    whole = Job(
        command=("torchrun", f"--nproc-per-node={world_size}", "train.py"),
        world_size=world_size,
        nodes=("gpu-1",),
        torch="2.13.0",
        backends=("gloo",),
        started=START,
    )
    return replace(whole, **more)


def stacks(rank: int, frames: Sequence[Frame], source: str = "py-spy") -> RankStacks:
    return RankStacks(rank, source, START, (Stack("MainThread", tuple(frames)),))


def diagnosis(findings: Sequence[Finding], states: Mapping[int, RankState], **more: object) -> Diagnosis:
    return replace(Diagnosis(tuple(findings), findings[0].status if findings else Status.HEALTHY, states), **more)


TIMING = Timing(START + 170 * MS, 1.2, 1.9)


def uneven_inputs(world: int = 4, absent: frozenset[int] = frozenset({2})) -> Sample:
    """Some ranks' data ended a batch before the others'."""
    group = Group("default_pg", tuple(range(world)), backend="gloo")
    final = frame("main", "train.py", 84)
    traces, states, taken, standing = [], {}, [], {}
    for rank in range(world):
        gone = rank in absent
        made = trace(
            rank,
            steps(GRADIENTS, 16, pending=not gone),
            progress=Progress(7, 7, 7, 7, True, (7,)) if gone else Progress(8, 8, 7, 7),
        )
        traces.append(made)
        standing[rank] = at(made, 17, OperationState.ABSENT if gone else OperationState.WAITING)
        states[rank] = RankState.RUNNING if gone else RankState.WAITING
        idle = (Frame("sleep", "libc.so.6", 0), final, frame("<module>", "train.py", 91))
        taken.append(stacks(rank, idle if gone else BACKWARD))
    culprits = tuple(sorted(absent))
    finding = Finding(
        Status.HANG,
        Cause.UNEVEN_INPUTS,
        Certainty.LIKELY,
        culprits,
        f"Rank {culprits[0]}'s data ended after 7 batches while the other ranks went on to batch 8.",
        "Give every rank the same number of batches: DistributedSampler with drop_last=True, or wrap the loop in model.join().",
        (
            f"rank {culprits[0]}: its loader was exhausted after 7 batches; the other ranks have fetched batch 8",
            f"rank {culprits[0]}: frozen for 10 s, no CPU time and no I/O",
            "the other ranks are inside all_reduce 17 of default_pg, in backward of step 8",
        ),
        divergence=Divergence(group, "collective", 17, "all_reduce", standing, GRADIENTS.bucket, START),
    )
    evidence = Evidence(job(world), tuple(traces), stacks=tuple(taken))
    return Sample(evidence, diagnosis([finding], states), TIMING)


def many_ranks() -> Sample:
    return uneven_inputs(64, frozenset({3}))


def shape_mismatch() -> Sample:
    """One rank reduces a tensor of another shape."""
    group = Group("default_pg", (0, 1, 2, 3), backend="gloo")
    usual = replace(GRADIENTS, bucket=None)
    odd = replace(usual, inputs=Tensors(((10,),), ("float32",)))
    barrier = Call("barrier", Kind.COLLECTIVE, site=LOOP)
    made = []
    for rank in range(4):
        last = Step(odd if rank == 3 else usual, 3, done=None)
        made.append(trace(rank, [Step(barrier, 1), Step(usual, 2), last]))
    standing = {
        rank: at(made[rank], 3, OperationState.MISMATCHED if rank == 3 else OperationState.WAITING) for rank in range(4)
    }
    finding = Finding(
        Status.HANG,
        Cause.ARGUMENT_MISMATCH,
        Certainty.PROVEN,
        (3,),
        "Rank 3 calls all_reduce with shape [10]; ranks 0-2 call it with shape [20].",
        "Reduce tensors of one shape on all ranks: pad rank 3's, or gather the sizes first.",
        ("shapes differ: [10] on rank 3, [20] on ranks 0-2",),
        divergence=Divergence(group, "collective", 3, "all_reduce", standing),
    )
    evidence = Evidence(job(4), tuple(made), stacks=tuple(stacks(rank, BACKWARD) for rank in range(4)))
    return Sample(evidence, diagnosis([finding], dict.fromkeys(range(4), RankState.WAITING)), TIMING)


def rank_only_branch() -> Sample:
    """Rank 0 calls a barrier in its checkpoint that the others do not call."""
    group = Group("default_pg", (0, 1), backend="gloo")
    barrier = Call("barrier", Kind.COLLECTIVE, site=SAVE)
    alternating = [Step(GRADIENTS if seq % 2 else SECOND_BUCKET, seq) for seq in range(1, 17)]
    made = [
        trace(0, [*alternating, Step(barrier, 17, done=None)]),
        trace(1, [*alternating, Step(GRADIENTS, 17, done=None), Step(SECOND_BUCKET, 18, done=None)]),
    ]
    standing = {0: at(made[0], 17, OperationState.MISMATCHED), 1: at(made[1], 17, OperationState.WAITING)}
    finding = Finding(
        Status.HANG,
        Cause.RANK_ONLY_COLLECTIVE,
        Certainty.PROVEN,
        (0,),
        "Rank 0 calls barrier, which rank 1 never calls.",
        "Call it on all ranks, or take it out of the branch that only rank 0 enters.",
        ("one operation more on rank 0 than on rank 1, at checkpoint.py:18",),
        divergence=Divergence(group, "collective", 17, "barrier", standing),
    )
    evidence = Evidence(job(2), tuple(made))
    return Sample(evidence, diagnosis([finding], dict.fromkeys(range(2), RankState.WAITING)), TIMING)


def exception() -> Sample:
    """Rank 1 raises; the others fail in the collective that it never enters."""
    group = Group("default_pg", (0, 1, 2), backend="gloo")
    failure = Failure(
        "ValueError",
        "cannot reshape array of size 0\ninto shape (32,)",
        (Frame("reshape", f"{SITE_PACKAGES}/numpy/core/fromnumeric.py", 285), frame("collate", "data.py", 31), *LOOP.frames),
    )
    lost = Failure("RuntimeError", "Connection closed by peer [127.0.0.1]:40413", LOOP.frames)
    raised = (Mark(MarkKind.EXCEPTION, START + 160 * MS, value="ValueError", failure=failure),)
    victim = (Mark(MarkKind.EXCEPTION, START + 175 * MS, value="RuntimeError", failure=lost),)
    broken = [*steps(GRADIENTS, 16), Step(GRADIENTS, 17, done=None, failed=True)]
    made = []
    for rank in range(3):
        culprit = rank == 1
        made.append(
            trace(
                rank,
                steps(GRADIENTS, 16) if culprit else broken,
                marks=raised if culprit else victim,
                exit=Exit(START + 200 * MS, 1, True),
                progress=Progress(8, 8 - culprit, 7, 7),
            )
        )
    standing = {rank: at(made[rank], 17, OperationState.ABSENT if rank == 1 else OperationState.WAITING) for rank in range(3)}
    first = Finding(
        Status.CRASH,
        Cause.EXCEPTION,
        Certainty.PROVEN,
        (1,),
        "Rank 1 raised ValueError: cannot reshape array of size 0 into shape (32,).",
        "Fix the exception; ranks 0,2 only lost their partner.",
        ("rank 1 raised first, 15 ms before any other rank",),
        divergence=Divergence(group, "collective", 17, "all_reduce", standing, GRADIENTS.bucket),
    )
    second = Finding(
        Status.CRASH,
        Cause.EXCEPTION,
        Certainty.PROVEN,
        (),
        "Ranks 0,2 raised RuntimeError: Connection closed by peer, in all_reduce 17.",
        "",
        follows_from=0,
    )
    evidence = Evidence(
        job(3, exit_code=1, ended=START + 400 * MS),
        tuple(made),
        stacks=(),
        ended=True,
        notes=("no stacks: the ranks had ended before they could be taken",),
    )
    return Sample(evidence, diagnosis([first, second], dict.fromkeys(range(3), RankState.RAISED)), Timing(START, 0.3))


def two_faults() -> Sample:
    """A mismatch that stopped nobody, and a hang that has nothing to do with it."""
    mismatch, hang = shape_mismatch(), uneven_inputs()
    first = replace(mismatch.diagnosis.findings[0], status=Status.MISMATCH)
    return replace(mismatch, diagnosis=diagnosis([first, hang.diagnosis.findings[0]], mismatch.diagnosis.states))


def killed() -> Sample:
    """One rank of two nodes is killed from outside."""
    base = uneven_inputs()
    traces = [
        replace(made, node="gpu-1" if made.rank < 2 else "gpu-2", exit=Exit(START, -9) if made.rank == 2 else None)
        for made in base.evidence.traces
    ]
    finding = replace(
        base.diagnosis.findings[0],
        status=Status.CRASH,
        cause=Cause.KILLED,
        certainty=Certainty.PROVEN,
        summary="Rank 2 was killed by SIGKILL.",
        advice="Look for the out-of-memory killer in gpu-2's kernel log (dmesg), and ask who else sends signals there.",
        evidence=("rank 2 ended by signal 9 without announcing it",),
    )
    evidence = replace(
        base.evidence,
        job=replace(base.evidence.job, nodes=("gpu-1", "gpu-2")),
        traces=tuple(traces),
        stacks=tuple(sample for sample in base.evidence.stacks if sample.rank != 2),
    )
    states = {**base.diagnosis.states, 2: RankState.KILLED}
    return Sample(evidence, diagnosis([finding], states), TIMING)


def deadlock_of_sends() -> Sample:
    """Two ranks send to each other before either receives."""
    group = Group("default_pg", (0, 1), backend="gloo")
    tensor = Tensors(((1024, 1024),), ("float32",))
    made = []
    for rank in range(2):
        send = Call("send", Kind.P2P, inputs=tensor, peer=1 - rank, site=LOOP)
        recv = Call("recv", Kind.P2P, outputs=tensor, peer=1 - rank, site=LOOP)
        made.append(trace(rank, [Step(GRADIENTS, 1), Step(send, 1), Step(recv, 1), Step(send, 2, done=None)]))
    standing = {rank: AtDivergence(OperationState.WAITING, made[rank].operations.row(rank, -1)) for rank in range(2)}
    finding = Finding(
        Status.HANG,
        Cause.P2P_MISMATCH,
        Certainty.PROVEN,
        (0, 1),
        "Ranks 0 and 1 each send to the other and none receives.",
        "Let one of them receive first, or use batch_isend_irecv.",
        divergence=Divergence(group, "p2p", 2, "send", standing),
    )
    states = dict.fromkeys(range(2), RankState.WAITING)
    return Sample(Evidence(job(2), tuple(made)), diagnosis([finding], states), TIMING)


def circle_of_groups() -> Sample:
    """Two ranks use two groups in opposite order: each waits in the one that the other would come to next."""
    groups = {name: Group(name, (0, 1), backend="gloo") for name in ("1", "2")}
    made_group = Step(Call("new_group", Kind.GROUP, site=LOOP), 1)
    made = [
        trace(rank, [Step(GRADIENTS, 1), made_group, Step(GRADIENTS, 1, str(rank + 1), done=None)], groups=groups)
        for rank in range(2)
    ]
    standing = {0: at(made[0], 1, OperationState.WAITING, "1"), 1: AtDivergence(OperationState.ABSENT)}
    finding = Finding(
        Status.HANG,
        Cause.GROUP_ORDER_CYCLE,
        Certainty.PROVEN,
        (),
        "Rank 0 waits in all_reduce #1 of group 1 for rank 1; rank 1 waits in all_reduce #1 of group 2 for rank 0.",
        "Use the groups in one order on all ranks.",
        divergence=Divergence(groups["1"], "collective", 1, "all_reduce", standing),
    )
    states = dict.fromkeys(range(2), RankState.WAITING)
    return Sample(Evidence(job(2), tuple(made)), diagnosis([finding], states), TIMING)


def healthy() -> Sample:
    made = tuple(trace(rank, steps(GRADIENTS, 128), exit=Exit(START, 0, True)) for rank in range(4))
    evidence = Evidence(job(4, exit_code=0, ended=START), made, ended=True)
    return Sample(evidence, diagnosis([], dict.fromkeys(range(4), RankState.EXITED)))


def unknown() -> Sample:
    evidence = Evidence(job(4, exit_code=1), (), ended=True, notes=("no rank opened a journal",))
    return Sample(evidence, Diagnosis((), Status.UNKNOWN, {}))


HOSTILE = "[red]x[/red]\x1b[31m\u202eevil\r\n\x9b2J\ud800"


def hostile() -> Sample:
    """Every name and message that a job can choose is an attack on the terminal."""
    group = Group(HOSTILE, (0, 1), description=HOSTILE)
    site = CallSite((Frame(HOSTILE, f"/srv/{HOSTILE}.py", 7),))
    call = replace(GRADIENTS, op=HOSTILE, site=site, bucket=HOSTILE, reduce_op=HOSTILE)
    other = replace(call, op="other" + HOSTILE * 50, inputs=Tensors(((3,),), (HOSTILE,)))
    made = [
        trace(0, [Step(call, 1, HOSTILE), Step(call, 2, HOSTILE, done=None)], node=HOSTILE),
        trace(
            1,
            [Step(call, 1, HOSTILE), Step(other, 2, HOSTILE, done=None)],
            notes=(HOSTILE,),
            marks=(Mark(MarkKind.EXCEPTION, START, failure=Failure(HOSTILE, HOSTILE * 100, site.frames)),),
        ),
    ]
    standing = {
        0: at(made[0], 2, OperationState.WAITING, HOSTILE),
        1: at(made[1], 2, OperationState.MISMATCHED, HOSTILE),
    }
    finding = Finding(
        Status.HANG,
        Cause.RANK_ONLY_COLLECTIVE,
        Certainty.PROVEN,
        (1,),
        HOSTILE,
        HOSTILE,
        (HOSTILE,) * 100,
        divergence=Divergence(group, "collective", 2, HOSTILE, standing, HOSTILE),
    )
    taken = tuple(RankStacks(rank, HOSTILE, START, (Stack(HOSTILE, site.frames),)) for rank in range(2))
    evidence = Evidence(job(2, command=(HOSTILE,), torch=HOSTILE), tuple(made), stacks=taken, notes=(HOSTILE,))
    states = {0: RankState.WAITING, 1: RankState.RAISED}
    return Sample(evidence, diagnosis([finding, replace(finding, follows_from=0)], states), TIMING)


SAMPLES: dict[str, Callable[[], Sample]] = {
    made.__name__: made
    for made in (
        uneven_inputs,
        many_ranks,
        shape_mismatch,
        rank_only_branch,
        exception,
        killed,
        deadlock_of_sends,
        circle_of_groups,
        healthy,
        unknown,
        hostile,
    )
}
