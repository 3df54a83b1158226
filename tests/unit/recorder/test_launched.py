from __future__ import annotations

import os
import sys

import pytest

from desync.recorder import claims, launched

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")
CLAIM = "DESYNC_RANK_PID"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, CLAIM, "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(CLAIM, "")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "train.py"])


def init_process_group(  # as torch's
    backend: str | None = None,
    init_method: str | None = None,
    timeout: object = None,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
) -> None:
    """Stands for torch's own."""


@pytest.mark.parametrize(
    ("environment", "argv", "rank"),
    [
        ({}, ["train.py"], None),
        ({"RANK": "3", "LOCAL_RANK": "1"}, ["train.py"], 3),
        ({"RANK": "3", "LOCAL_RANK": "1"}, ["-m", "mine.train"], 3),
        ({"OMPI_COMM_WORLD_RANK": "2"}, ["train.py"], 2),
        ({"PMI_RANK": "0"}, ["train.py"], 0),
        # A cluster manager's number of the node, which a launcher there inherits.
        ({"RANK": "1"}, ["-m", "torch.distributed.run", "train.py"], None),
        ({"RANK": "1"}, ["train.py"], None),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ["/usr/bin/torchrun", "train.py"], None),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ["-u", "/usr/bin/accelerate", "launch", "train.py"], None),
        ({"SLURM_PROCID": "1"}, ["train.py"], None),  # set in batch scripts, too
        ({"RANK": "one", "LOCAL_RANK": "0"}, ["train.py"], None),
    ],
)
def test_only_what_a_launcher_started_is_a_rank_at_once(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], argv: list[str], rank: int | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", ["python", *argv])
    assert launched.claimed_rank() == rank
    assert os.environ[CLAIM] == ("" if rank is None else str(os.getpid()))


def test_the_rank_that_an_ancestor_has_claimed_is_not_this_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv(CLAIM, str(os.getppid()))
    assert launched.claimed_rank() is None
    monkeypatch.setenv(CLAIM, str(os.getpid()))  # the same process after os.exec
    assert launched.claimed_rank() == 1


@pytest.mark.parametrize(
    ("rank", "before", "argv", "after"),
    [
        ("1", "", ["train.py"], "its own"),
        ("1", "77", ["train.py"], "77"),  # a helper of the rank's
        ("one", "", ["train.py"], ""),
        ("1", "", ["-m", "torch.distributed.run", "train.py"], None),
        ("1", "77", ["/usr/bin/torchrun", "train.py"], None),  # whom it starts gets a rank of its own
    ],
)
def test_a_rank_is_claimed_when_its_interpreter_starts(
    monkeypatch: pytest.MonkeyPatch, rank: str, before: str, argv: list[str], after: str | None
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv(CLAIM, before)
    monkeypatch.setattr(sys, "orig_argv", ["python", *argv])
    claims.at_start()
    assert os.environ.get(CLAIM) == (str(os.getpid()) if after == "its own" else after)
    assert claims.ancestor() == (77 if after == "77" else 0)


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        ((), {}, (5, 8)),
        (("gloo",), {"rank": 2, "world_size": 4}, (2, 4)),
        (("gloo", "tcp://h:1", None, 4, 2), {}, (2, 4)),
        (("gloo",), {"init_method": "tcp://h:1?rank=3&world_size=6"}, (3, 6)),
        (("gloo",), {"init_method": "env://?rank=3"}, (3, 8)),
        (("gloo",), {"init_method": "env://?rank=x"}, (None, 8)),
        (("gloo",), {"rank": 0}, (0, 8)),
        (("gloo",), {"no_such_option": 0}, (5, 8)),
        (("gloo",), {"init_method": 7}, (5, 8)),
    ],
)
def test_the_call_says_the_rank_before_the_environment_does(
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[object, ...],
    options: dict[str, object],
    expected: tuple[int | None, int | None],
) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert launched.asked_for(init_process_group, arguments, options) == expected


def test_without_any_word_nothing_is_known() -> None:
    assert launched.asked_for(init_process_group, ("gloo",), {}) == (None, None)
