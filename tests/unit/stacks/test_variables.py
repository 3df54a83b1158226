from __future__ import annotations

import subprocess
import sys

import pytest

from desync.stacks import pyspy
from desync.stacks.variables import MAX_VALUE, kept

STUCK = """
import time
def train(rank, secret):
    print("ready", flush=True)
    time.sleep(600)
train(3, "password")
"""


def local(name: str, text: str) -> dict[str, str]:
    return {"name": name, "repr": text}


def test_only_what_is_asked_for_is_kept() -> None:
    raw = [local("rank", "2"), local("world_size", "8"), local("i", "1"), local("group", "<G>"), local("password", '"x"')]
    assert kept("/job/train.py", raw) == {"rank": "2", "world_size": "8"}
    assert kept("/x/torch/multiprocessing/spawn.py", raw) == {"rank": "2", "world_size": "8", "i": "1"}
    assert kept("/x/torch/distributed/distributed_c10d.py", raw) == {"rank": "2", "world_size": "8", "group": "<G>"}
    assert kept("/job/train.py", [local("rank", '"a name"'), local("rank", "12345678")]) == {}


@pytest.mark.parametrize("raw", [None, 5, "x", {}, [None, 1, {"name": 1}, {"name": "rank"}, {"name": "rank", "repr": 2}]])
def test_what_is_no_list_of_variables_gives_none(raw: object) -> None:
    assert kept("/job/train.py", raw) == {}


def test_values_are_cut() -> None:
    assert len(kept("/x/torch/distributed/c10d_logger.py", [local("args", "x" * 5000)])["args"]) == MAX_VALUE


def test_variables_of_a_running_process_stand_beside_its_frames() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            taken = pyspy.take({7: process.pid}, 20, native=False, variables=True)
            plain = pyspy.take({7: process.pid}, 20, native=False)
        finally:
            process.kill()
    (stacks,) = taken.stacks
    (values,) = taken.variables[7]
    assert [frame.function for frame in stacks.threads[0].frames] == ["train", "<module>"]
    assert [dict(each) for each in values] == [{"rank": "3"}, {}]
    assert plain.stacks[0].threads == stacks.threads
    assert plain.variables == {}
