from __future__ import annotations

from pathlib import Path

import pytest

from desync.model import KernelKills
from desync.watch.kernel_kills import KernelKillCounters

VERSION_1 = "9:name=systemd:/\n4:cpu,memory:/job/1\n3:cpuset:/\n0::/\n"
VERSION_2 = "0::/job/1\n"


class Machine:
    """Files as Linux has them in /proc and in /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.write(self.proc / "vmstat", "nr_free_pages 1\noom_kill 7\nother_oom_kill 99\n")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def rank(self, pid: int, cgroup: str) -> int:
        self.write(self.proc / str(pid) / "cgroup", cgroup)
        return pid

    def kills(self, version: int, count: int) -> None:
        place = self.cgroups / ("memory/job/1/memory.oom_control" if version == 1 else "job/1/memory.events")
        self.write(place, f"low 0\nmax 12\noom 3\noom_kill {count}\noom_group_kill 0\n")

    def counters(self) -> KernelKillCounters:
        return KernelKillCounters(self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(("version", "cgroup"), [(1, VERSION_1), (2, VERSION_2)])
def test_what_a_cgroup_counts_after_its_ranks_began_is_theirs(machine: Machine, version: int, cgroup: str) -> None:
    machine.kills(version, 4)
    counters = machine.counters()
    for rank in (2, 0):
        counters.add(rank, machine.rank(100 + rank, cgroup))
    assert counters.kills() == ()
    machine.kills(version, 6)
    assert counters.kills() == (KernelKills((0, 2), 2, in_cgroup=True),)


def test_what_was_counted_is_still_known_when_the_process_is_gone(machine: Machine) -> None:
    machine.kills(2, 0)
    counters = machine.counters()
    counters.add(0, machine.rank(100, VERSION_2))
    (machine.proc / "100" / "cgroup").unlink()
    machine.kills(2, 1)
    assert counters.kills() == (KernelKills((0,), 1, in_cgroup=True),)


def test_without_a_cgroup_that_counts_there_is_the_machines_counter(machine: Machine) -> None:
    counters = machine.counters()
    counters.add(0, machine.rank(100, "0::/\n"))
    counters.add(1, 101)
    machine.write(machine.proc / "vmstat", "oom_kill 8\n")
    assert counters.kills() == (KernelKills((0, 1), 1, in_cgroup=False),)


def test_a_cgroup_that_was_removed_meanwhile_says_nothing(machine: Machine) -> None:
    machine.kills(2, 0)
    counters = machine.counters()
    counters.add(0, machine.rank(100, VERSION_2))
    (machine.cgroups / "job/1/memory.events").unlink()
    assert counters.kills() == ()


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    counters = KernelKillCounters(tmp_path / "none", tmp_path / "neither")
    counters.add(0, 100)
    assert counters.kills() == ()


def test_files_that_hold_something_else_are_no_counters(machine: Machine) -> None:
    machine.write(machine.proc / "vmstat", "oom_kill many\n")
    counters = machine.counters()
    counters.add(0, machine.rank(100, "what is this\n4:memory\n" + "\x00" * 50))
    machine.write(machine.proc / "vmstat", "oom_kill 12\n")
    assert counters.kills() == ()


def test_this_machine_can_be_asked() -> None:
    counters = KernelKillCounters()
    counters.add(0, 1)
    assert isinstance(counters.kills(), tuple)
