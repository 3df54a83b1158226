from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil
import pytest

from desync.watch import ranks
from desync.watch.ranks import LivingJob, Spawned, find_jobs, related

FAR = 5_000_000
"""Above every process id that a kernel gives: what these tests make up is no process of this machine."""


@dataclass(frozen=True)
class Fake:
    """A process of a machine that is made up."""

    number: int
    parent: int = 0
    command: Sequence[str] = ("python", "train.py")
    environment: Mapping[str, str] = field(default_factory=dict)
    torch: bool = True
    hidden: bool = False
    state: str = psutil.STATUS_SLEEPING

    @property
    def pid(self) -> int:
        return FAR + self.number

    def ppid(self) -> int:
        return FAR + self.parent if self.parent else 1

    def name(self) -> str:
        return self.command[0]

    def cmdline(self) -> list[str]:
        return list(self.command)

    def status(self) -> str:
        return self.state

    def create_time(self) -> float:
        return float(self.number)

    def environ(self) -> dict[str, str]:
        if self.hidden:
            raise psutil.AccessDenied(self.pid)
        return dict(self.environment)


def env(rank: int, world: int, **more: str) -> dict[str, str]:
    """What torchrun gives."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_PORT": "29500", **more}


SPAWN = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()")


class Machine:
    """Puts made-up processes in the place of this machine's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[Fake] = []
        self.peeked: list[list[int]] = []
        self.told: dict[int, Spawned] = {}
        monkeypatch.setattr(ranks.psutil, "process_iter", lambda: iter(self.processes))
        monkeypatch.setattr(ranks, "_has_torch", self._has_torch)

    def _has_torch(self, pid: int) -> bool:
        return any(process.torch for process in self.processes if process.pid == pid)

    def peek(self, pids: Sequence[int]) -> dict[int, Spawned]:
        self.peeked.append([pid - FAR for pid in pids])
        return {FAR + number: told for number, told in self.told.items() if FAR + number in pids}

    def jobs(self, *processes: Fake, near: int | None = None) -> list[LivingJob]:
        self.processes = list(processes)
        return find_jobs(self.peek, near=None if near is None else FAR + near)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def pids(job: LivingJob) -> dict[int, int]:
    return {rank: pid - FAR for rank, pid in job.pids.items()}


def test_torchruns_ranks_are_found_below_it_and_their_loader_workers_are_no_ranks(machine: Machine) -> None:
    (job,) = machine.jobs(
        Fake(1, command=("bash",)),
        Fake(2, 1, command=("python", "/bin/torchrun", "train.py")),
        *(Fake(10 + rank, 2, environment=env(rank, 2, DESYNC_RUN_DIR="/runs/1")) for rank in (1, 0)),
        Fake(20, 10, environment=env(0, 2, DESYNC_RUN_DIR="/runs/1")),
        Fake(21, 11, environment=env(1, 2), command=("python", "-c", "loader")),
    )
    assert pids(job) == {0: 10, 1: 11}
    assert (job.world_size, job.launcher, job.all_here, job.run_directory) == (2, FAR + 2, True, "/runs/1")


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "n"},
        {"PMI_RANK": "{}", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"},
        {"SLURM_PROCID": "{}", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
        {"RANK": "{}", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_every_launchers_words_count_and_ranks_on_other_machines_are_not_missed(
    variables: dict[str, str], machine: Machine
) -> None:
    made = [Fake(10 + rank, 2, environment={name: value.format(rank) for name, value in variables.items()}) for rank in (2, 3)]
    (job,) = machine.jobs(Fake(2, command=("mpirun",)), *made)
    assert pids(job) == {2: 12, 3: 13}
    assert (job.world_size, job.all_here) == (4, False)


def test_a_wrapper_in_front_of_a_rank_is_not_the_rank(machine: Machine) -> None:
    more = env(0, 1)
    shell = Fake(2, command=("bash", "-c", "python train.py"), environment=more, torch=False)
    (job,) = machine.jobs(shell, Fake(3, 2, environment=more))
    assert pids(job) == {0: 3}


def test_a_launcher_with_numbers_of_its_own_is_no_rank(machine: Machine) -> None:
    # As in a pod of Kubernetes, or under srun: torchrun itself carries the number of its machine.
    pod = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
    (job,) = machine.jobs(
        Fake(2, command=("python", "torchrun"), environment=pod),
        *(Fake(10 + rank, 2, environment={**pod, **env(rank, 2, TORCHELASTIC_RUN_ID="x")}) for rank in range(2)),
    )
    assert pids(job) == {0: 10, 1: 11}


def test_a_slurm_batch_script_is_no_rank(machine: Machine) -> None:
    script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}
    assert machine.jobs(Fake(2, environment=script)) == []


@pytest.mark.parametrize(
    "words",
    [("", "2"), ("0", ""), ("-1", "2"), ("2", "2"), ("a", "2"), ("0", "²"), ("0", "99999999999")],
)
def test_numbers_that_are_none_make_no_rank(words: tuple[str, str], machine: Machine) -> None:
    assert machine.jobs(Fake(2, environment={"RANK": words[0], "WORLD_SIZE": words[1]})) == []


def test_two_jobs_are_told_apart_by_port_and_where_there_is_none_by_their_parents(machine: Machine) -> None:
    ports = machine.jobs(*(Fake(10 + n, 2, environment=env(n % 2, 2, MASTER_PORT=str(n // 2))) for n in range(4)))
    assert [pids(job) for job in ports] == [{0: 10, 1: 11}, {0: 12, 1: 13}]
    same = machine.jobs(*(Fake(10 + n, 2 + n // 2, environment=env(n % 2, 2)) for n in range(4)))
    assert [pids(job) for job in same] == [{0: 10, 1: 11}, {0: 12, 1: 13}]
    bare = {"WORLD_SIZE": "2"}
    by_hand = machine.jobs(*(Fake(10 + n, 2 + n // 2, environment={**bare, "RANK": str(n % 2)}) for n in range(4)))
    assert [pids(job) for job in by_hand] == [{0: 10, 1: 11}, {0: 12, 1: 13}]


def test_what_has_not_loaded_torch_is_a_job_only_where_it_is_asked_for(machine: Machine) -> None:
    made = [Fake(10 + rank, 2, environment=env(rank, 2), torch=False) for rank in range(2)]
    assert machine.jobs(*made) == []
    assert [pids(job) for job in machine.jobs(*made, near=2)] == [{0: 10, 1: 11}]


def test_zombies_and_processes_that_may_not_be_seen_are_left_out(machine: Machine) -> None:
    zombie = Fake(2, environment=env(0, 1), state=psutil.STATUS_ZOMBIE)
    assert machine.jobs(zombie, Fake(3, environment=env(0, 1), hidden=True)) == []


def test_spawned_ranks_are_numbered_by_what_their_stacks_say(machine: Machine) -> None:
    machine.told = {11: Spawned(1, 4), 10: Spawned(0, 4)}
    (job,) = machine.jobs(Fake(2), Fake(10, 2, SPAWN), Fake(11, 2, SPAWN), Fake(12, 2, SPAWN), Fake(13, 2, SPAWN, torch=False))
    assert pids(job) == {0: 10, 1: 11}
    assert (job.world_size, job.launcher, job.all_here, job.notes) == (4, FAR + 2, False, ())
    assert machine.peeked == [[10, 11, 12]]


def test_spawned_ranks_that_say_nothing_are_numbered_in_their_order_and_that_is_said(machine: Machine) -> None:
    machine.told = {10: Spawned(None, None), 11: Spawned(None, None)}
    (job,) = machine.jobs(Fake(2), Fake(11, 2), Fake(10, 2))  # forked: the command is the parent's
    assert (pids(job), job.world_size, job.all_here) == ({0: 10, 1: 11}, 2, True)
    assert "in the order in which they were started" in job.notes[0]


def test_copies_of_a_program_that_are_no_ranks_make_no_job(machine: Machine) -> None:
    assert machine.jobs(Fake(2), Fake(10, 2), Fake(11, 2)) == []
    assert machine.peeked == [[10, 11]]
    machine.peeked.clear()
    assert machine.jobs(Fake(2), Fake(10, 2), Fake(30), near=30) == []
    assert machine.peeked == [], "what has nothing to do with the process that was named is left alone"
    rank = env(0, 1)
    assert len(machine.jobs(Fake(2, environment=rank), Fake(10, 2, environment=rank))) == 1
    assert machine.peeked == []


def test_a_process_belongs_to_a_job_if_it_is_above_below_or_one_of_its_ranks() -> None:
    own = psutil.Process()
    job = LivingJob({0: own.pid}, 1, launcher=FAR)
    assert related(job, own.pid)
    assert related(job, own.ppid())
    assert related(job, FAR)
    assert not related(job, FAR + 1)
    assert related(LivingJob({0: own.ppid()}, 1, None), own.pid)
