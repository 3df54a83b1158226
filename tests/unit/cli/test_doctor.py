from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from desync.cli import doctor
from desync.cli.doctor import Check, State


def _answer(monkeypatch: pytest.MonkeyPatch, status: int | None, output: str) -> None:
    monkeypatch.setattr(doctor, "_output", lambda command: (status, output))


@pytest.mark.parametrize(
    ("found", "status", "last"),
    [
        ([State.FINE, State.UNKNOWN], 0, "no problem found"),
        ([State.FINE, State.PROBLEM], 1, "1 problem found"),
        ([State.PROBLEM, State.PROBLEM], 1, "2 problems found"),
    ],
)
def test_problems_decide_the_exit_status(
    found: list[State], status: int, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def checks(run_dir: Path) -> Iterator[Check]:
        for state in found:
            yield Check("thing", state, "it \x1b[31mis so", "repair it" if state is State.PROBLEM else None)

    monkeypatch.setattr(doctor, "checks", checks)
    assert doctor.run(argparse.Namespace(run_dir=Path("runs"))) == status
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == last
    assert shown.count("-> repair it") == found.count(State.PROBLEM)
    assert "\x1b" not in shown


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISK_NEEDED", 0)
    fine = doctor.check_disk(tmp_path / "not" / "there" / "yet")
    assert fine.state is State.FINE
    assert str(tmp_path) in fine.detail
    file = tmp_path / "file"
    file.touch()
    assert doctor.check_disk(file / "runs").state is State.PROBLEM
    monkeypatch.setattr(doctor, "DISK_NEEDED", 1 << 80)
    full = doctor.check_disk(tmp_path)
    assert full.state is State.PROBLEM
    assert full.remedy is not None


def test_py_spy_that_is_missing_or_broken(tmp_path: Path) -> None:
    missing = doctor.check_py_spy(None)
    assert missing.state is State.PROBLEM
    assert missing.remedy is not None
    assert "pip install py-spy" in missing.remedy
    broken = tmp_path / "py-spy"
    broken.write_text("#!/bin/sh\necho wrong machine\nexit 126\n")
    broken.chmod(0o755)
    assert doctor.check_py_spy(str(broken)) == Check(
        "py-spy", State.PROBLEM, f"{broken} does not run: wrong machine", missing.remedy
    )
    assert doctor.check_py_spy(str(tmp_path / "gone")).state is State.PROBLEM
    assert doctor.check_ptrace(None).state is State.UNKNOWN


def test_a_refused_ptrace_is_a_problem(tmp_path: Path) -> None:
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\necho 'Error: Permission denied' >&2\nexit 1\n")
    refused.chmod(0o755)
    check = doctor.check_ptrace(str(refused))
    assert check.state is State.PROBLEM
    assert "Permission denied" in check.detail
    assert check.remedy


@pytest.mark.parametrize(
    ("scope", "seccomp", "words"),
    [
        ("3\n", "0", "kernel.yama.ptrace_scope=3"),
        ("2\n", "0", "sysctl kernel.yama.ptrace_scope=1"),
        ("1\n", "2", "--cap-add=SYS_PTRACE"),
        (None, "2", "--cap-add=SYS_PTRACE"),
        ("0\n", "0", "as the user that runs the job"),
    ],
)
def test_the_remedy_for_ptrace_depends_on_who_refuses(scope: str | None, seccomp: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(f"Name:\tpython\nSeccomp:\t{seccomp}\n")
    if scope is not None:
        yama = tmp_path / "sys/kernel/yama"
        yama.mkdir(parents=True)
        (yama / "ptrace_scope").write_text(scope)
    assert words in doctor.ptrace_remedy(tmp_path)


@pytest.mark.parametrize(
    ("status", "output", "state", "words"),
    [
        (0, "2.13.0+cpu\nTrue\nFalse\n", State.FINE, "torch 2.13.0+cpu, without NCCL"),
        (0, "some warning\n2.4.1\nTrue\nTrue\n", State.FINE, "torch 2.4.1, with NCCL"),
        (0, "2.3.1\nTrue\nTrue\n", State.PROBLEM, "too old"),
        (0, "2.13.0\nFalse\nFalse\n", State.PROBLEM, "without torch.distributed"),
        (1, "Traceback …\nModuleNotFoundError: No module named 'torch'\n", State.PROBLEM, "No module named 'torch'"),
        (None, "not over after 60 s", State.PROBLEM, "not over"),
    ],
)
def test_torch(status: int | None, output: str, state: State, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, status, output)
    check = doctor.check_torch()
    assert check.state is state
    assert words in check.detail
    assert (check.remedy is not None) is (state is State.PROBLEM)


@pytest.mark.parametrize(
    ("status", "output", "state", "words"),
    [
        (0, 'noise\n{"ok": true, "detail": "the hook records"}\n', State.FINE, "the hook records"),
        (1, '{"ok": false, "detail": "an all_reduce was not recorded"}\n', State.PROBLEM, "not recorded"),
        (-11, "", State.UNKNOWN, "it printed nothing"),
        (1, "ImportError: no torch\n", State.UNKNOWN, "ImportError"),
        (0, "[]\n", State.UNKNOWN, "[]"),
    ],
)
def test_hook(status: int, output: str, state: State, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, status, output)
    check = doctor.check_hook()
    assert check.state is state
    assert words in check.detail


def test_another_sitecustomize_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(doctor.sys.modules, "sitecustomize", raising=False)
    check = doctor.check_sitecustomize()
    assert str(tmp_path / "sitecustomize.py") in check.detail
    assert check.state is State.FINE


def test_here_every_question_gets_an_answer(tmp_path: Path) -> None:
    found = {check.what: check for check in doctor.checks(tmp_path)}
    assert list(found) == ["run directory", "start-up", "py-spy", "stacks", "torch", "hook"]
    assert found["py-spy"].state is State.FINE
    assert found["torch"].state is State.FINE
    assert found["hook"].state is State.FINE, found["hook"].detail
    assert found["stacks"].state is not State.UNKNOWN
