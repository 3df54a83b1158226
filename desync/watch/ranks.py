"""The distributed jobs that run on this machine now: which processes are ranks, of which job, and what started them.

Ranks are told by what their launcher has put into their environment.  Processes that a program has spawned itself carry no such
word; these are told by their stacks.  Nothing is asked of any process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from desync.watch.threads import MAX_MAPS

MAX_RANK = 1 << 22

_BY_LAUNCHER = (
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", ""),
)
"""Rank, world size and number of ranks on this machine, as launchers name them; what torch itself reads comes first."""
_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""What the ranks of one job have in common."""
RUN_DIRECTORY = "DESYNC_RUN_DIR"
_SPAWNED = "multiprocessing.spawn import spawn_main"

Peek = Callable[[Sequence[int]], Mapping[int, "Spawned"]]
"""Says of processes whether they are ranks that their program has spawned; the others are left out."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """What the stack of a spawned process tells of it."""

    rank: int | None
    world_size: int | None


@dataclass(frozen=True, slots=True)
class LivingJob:
    """A job that runs now."""

    pids: Mapping[int, int]
    """By rank, of those on this machine."""
    world_size: int | None
    launcher: int | None
    """The process that started the ranks."""
    command: tuple[str, ...] = ()
    """The launcher's."""
    started: float | None = None
    """When the first rank was started, in seconds since the epoch."""
    run_directory: str | None = None
    """Where `desync watch` keeps the job's records, if it was started with it."""
    all_here: bool = False
    """Whether all ranks were started on this machine."""
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Candidate:
    """A process that may be a rank."""

    process: psutil.Process
    parent: int | None
    command: tuple[str, ...]
    environment: Mapping[str, str]
    rank: int | None
    world_size: int | None
    local_size: int | None
    identity: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.identity = (self.rank, self.world_size, *(self.environment.get(name) for name in _JOB))

    @property
    def pid(self) -> int:
        return self.process.pid


def find_jobs(peek: Peek, near: int | None = None) -> list[LivingJob]:
    """All jobs of which this user may see the processes, the oldest first.

    With ``near`` only jobs near that process count, and spawned processes are looked into only where they stand above or below
    it; for what a person has named, less is asked.
    """
    parents: dict[int, int] = {}
    candidates: dict[int, _Candidate] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            parents[process.pid] = process.ppid()
            if process.pid != os.getpid() and (found := _candidate(process)) is not None:
                candidates[process.pid] = found
    named = _ranks(candidates, parents)
    jobs = [*_launched(named, parents, strict=near is None), *_spawned(candidates, parents, peek, near)]
    return sorted(jobs, key=lambda job: job.started or 0)


def related(job: LivingJob, pid: int) -> bool:
    """Whether a process is the job's launcher, one of its ranks, or something above or below these."""
    ranks = set(job.pids.values())
    if pid in ranks or pid == job.launcher:
        return True
    with contextlib.suppress(psutil.Error):
        given = psutil.Process(pid)
        if ranks.intersection(parent.pid for parent in given.parents()):
            return True
        return bool(ranks.intersection(child.pid for child in given.children(recursive=True)))
    return False


def _candidate(process: psutil.Process) -> _Candidate | None:
    """A process with the words of a launcher in its environment, or one that Python runs; None for all else."""
    environment = _environment(process)
    command = tuple(process.cmdline())
    rank, world, local = _place(environment)
    if rank is None and not _is_python(process, command):
        return None
    if process.status() == psutil.STATUS_ZOMBIE:
        return None
    return _Candidate(process, process.ppid(), command, environment, rank, world, local)


def _environment(process: psutil.Process) -> Mapping[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def _place(environment: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    for rank_name, world_name, local_name in _BY_LAUNCHER:
        rank, world = _number(environment.get(rank_name)), _number(environment.get(world_name))
        # The script of a Slurm batch job has a number as well, and is no rank: only what srun starts has a step.
        if rank_name == "SLURM_PROCID" and "SLURM_STEP_ID" not in environment:
            continue
        if rank is not None and world is not None and rank < world:
            return rank, world, _number(environment.get(local_name))
    return None, None, None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 8 else None


def _is_python(process: psutil.Process, command: Sequence[str]) -> bool:
    return "python" in process.name() or (bool(command) and "python" in os.path.basename(command[0]))


# --- ranks that a launcher has numbered


def _ranks(candidates: Mapping[int, _Candidate], parents: Mapping[int, int]) -> list[_Candidate]:
    """One process for each rank: of those that share a rank's environment the uppermost that has torch, or is Python."""
    launchers: set[tuple[object, ...]] = set()
    families: dict[tuple[object, ...], list[_Candidate]] = {}
    for candidate in candidates.values():
        if candidate.rank is None:
            continue
        families.setdefault((candidate.identity, _top(candidate, candidates, parents)), []).append(candidate)
        above = _above(candidate, candidates, parents)
        if above is not None and above.identity != candidate.identity:
            # What has ranks of other numbers below it has started them, whatever its own environment says.
            launchers.add(above.identity)
    found = [_rank_of(members, parents) for (identity, _), members in families.items() if identity not in launchers]
    return [member for member in found if member is not None]


def _above(candidate: _Candidate, candidates: Mapping[int, _Candidate], parents: Mapping[int, int]) -> _Candidate | None:
    """The nearest process above that has a number as well."""
    for pid in _ancestors(candidate.pid, parents):
        other = candidates.get(pid)
        if other is not None and other.rank is not None:
            return other
    return None


def _top(candidate: _Candidate, candidates: Mapping[int, _Candidate], parents: Mapping[int, int]) -> int:
    """The uppermost process above with the same identity: two jobs of the same numbers are told apart by it."""
    top = candidate
    while (above := _above(top, candidates, parents)) is not None and above.identity == candidate.identity:
        top = above
    return top.pid


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    seen = {pid}
    while (pid := parents.get(pid, 0)) and pid not in seen:
        seen.add(pid)
        yield pid


def _rank_of(members: Sequence[_Candidate], parents: Mapping[int, int]) -> _Candidate | None:
    pids = {member.pid for member in members}
    depth = {member.pid: sum(pid in pids for pid in _ancestors(member.pid, parents)) for member in members}
    ordered = sorted(members, key=lambda member: (depth[member.pid], member.pid))
    with_torch = (member for member in ordered if _has_torch(member.pid))
    python = (member for member in ordered if _is_python(member.process, member.command))
    return next(with_torch, next(python, None))


def _has_torch(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return b"/libtorch" in maps.read(MAX_MAPS)
    except OSError:
        return False


def _launched(ranks: Iterable[_Candidate], parents: Mapping[int, int], *, strict: bool) -> list[LivingJob]:
    """The jobs of these ranks; ``strict``: only those of which a rank has come as far as to have loaded torch."""
    by_job: dict[tuple[object, ...], list[_Candidate]] = {}
    for rank in ranks:
        by_job.setdefault(_job_of(rank), []).append(rank)
    groups = (group for members in by_job.values() for group in _apart(members))
    return [_job(group, parents) for group in groups if not strict or any(_has_torch(member.pid) for member in group)]


def _job_of(rank: _Candidate) -> tuple[object, ...]:
    """What tells jobs apart; ranks of which nothing does are of one job if one process has started them."""
    known = tuple(rank.environment.get(name) for name in _JOB)
    return (rank.world_size, *known, None if any(known) else rank.parent)


def _apart(members: Sequence[_Candidate]) -> list[list[_Candidate]]:
    """Where a rank is there twice, it is the parents that tell the jobs apart."""
    if len({member.rank for member in members}) == len(members):
        return [list(members)]
    by_parent: dict[int | None, list[_Candidate]] = {}
    for member in members:
        by_parent.setdefault(member.parent, []).append(member)
    return list(by_parent.values())


def _job(members: Sequence[_Candidate], parents: Mapping[int, int]) -> LivingJob:
    ordered = sorted(members, key=lambda member: (member.rank or 0, member.pid))
    pids: dict[int, int] = {}
    for member in ordered:
        pids.setdefault(member.rank or 0, member.pid)
    first = ordered[0]
    local = max((member.local_size or 0 for member in members), default=0)
    return _described(
        LivingJob(
            pids=pids,
            world_size=first.world_size,
            launcher=_common(list(pids.values()), parents),
            run_directory=next((path for member in members if (path := member.environment.get(RUN_DIRECTORY))), None),
            all_here=local == first.world_size or len(pids) == first.world_size,
        )
    )


def _common(pids: Sequence[int], parents: Mapping[int, int]) -> int | None:
    """The lowest process above all of these."""
    chains = [list(_ancestors(pid, parents)) for pid in pids]
    shared = set(chains[0]).intersection(*chains[1:]) - {1} if chains else set()
    return next((pid for pid in (chains[0] if chains else ()) if pid in shared), None)


def _described(job: LivingJob) -> LivingJob:
    """The job with what its processes say of themselves."""
    command: tuple[str, ...] = ()
    with contextlib.suppress(psutil.Error):
        command = tuple(psutil.Process(job.launcher if job.launcher is not None else min(job.pids.values())).cmdline())
    times = []
    for pid in job.pids.values():
        with contextlib.suppress(psutil.Error):
            times.append(psutil.Process(pid).create_time())
    return LivingJob(
        job.pids, job.world_size, job.launcher, command, min(times, default=None), job.run_directory, job.all_here, job.notes
    )


# --- ranks that a program has spawned


def _spawned(
    candidates: Mapping[int, _Candidate], parents: Mapping[int, int], peek: Peek, near: int | None
) -> Iterator[LivingJob]:
    """Children of one Python program that stand in what only ranks stand in."""
    families: dict[int, list[_Candidate]] = {}
    for candidate in candidates.values():
        parent = candidates.get(candidate.parent or 0)
        if candidate.rank is None and parent is not None and parent.rank is None and _is_copy(candidate, parent):
            families.setdefault(parent.pid, []).append(candidate)
    for parent_pid, members in families.items():
        if near is not None and not _is_near(near, parent_pid, members, parents):
            continue
        ordered = sorted(members, key=lambda member: (member.process.create_time(), member.pid))
        children = [member for member in ordered if _has_torch(member.pid)]
        told = peek([member.pid for member in children]) if children else {}
        ranks = [member for member in children if member.pid in told]
        if ranks:
            yield _numbered(parent_pid, ranks, told)


def _is_near(pid: int, parent: int, members: Sequence[_Candidate], parents: Mapping[int, int]) -> bool:
    pids = {parent, *(member.pid for member in members)}
    return pid in pids or pid in _ancestors(parent, parents) or not pids.isdisjoint(_ancestors(pid, parents))


def _is_copy(child: _Candidate, parent: _Candidate) -> bool:
    """Whether a process was made by Python's multiprocessing: spawned, or forked, which leaves the command as it is."""
    return child.command == parent.command or any(_SPAWNED in part for part in child.command)


def _numbered(parent: int, ranks: Sequence[_Candidate], told: Mapping[int, Spawned]) -> LivingJob:
    numbers = [told[member.pid].rank for member in ranks]
    known = [number for number in numbers if number is not None]
    notes: tuple[str, ...] = ()
    if len(set(known)) == len(ranks) and max(known) < MAX_RANK:
        pids = {number: member.pid for number, member in zip(known, ranks, strict=True)}
    else:
        pids = {index: member.pid for index, member in enumerate(ranks)}
        notes = ("which process is which rank could not be seen: they are numbered in the order in which they were started",)
    worlds = [world for member in ranks if (world := told[member.pid].world_size) is not None]
    world = max([len(ranks), max(pids) + 1, *worlds])
    return _described(
        LivingJob(
            pids=dict(sorted(pids.items())),
            world_size=world,
            launcher=parent,
            run_directory=ranks[0].environment.get(RUN_DIRECTORY),
            all_here=len(pids) == world,
            notes=notes,
        )
    )
