"""Environment, run directory and command name: what is decided before the job starts."""

import os
import stat
from datetime import datetime, timezone
from pathlib import Path

import pytest

from desync.errors import LaunchError, RunDirectoryError
from desync.evidence.run_directory import RunRecord, save
from desync.watch import environment, run_directory
from desync.watch.environment import DebugLevels, job_environment
from desync.watch.launch import find_program

NOW = datetime(2026, 11, 30, 4, 5, 6, tzinfo=timezone.utc)


def test_the_recorder_comes_first_and_a_source_tree_last_on_the_users_path() -> None:
    result = job_environment({"PYTHONPATH": "/users/own", "HOME": "/h"}, Path("/run"), DebugLevels())
    parts = result["PYTHONPATH"].split(os.pathsep)
    assert (Path(parts[0]) / "sitecustomize.py").is_file()
    assert parts[1] == "/users/own"
    assert (Path(parts[-1]) / "desync" / "__init__.py").is_file()
    assert (result["DESYNC_RUN_DIR"], result["DESYNC_WATCHER_PID"]) == ("/run", str(os.getpid()))
    assert result["HOME"] == "/h"
    assert "DESYNC_TORCH_WRAPPER" not in result
    again = job_environment(result, Path("/run"), DebugLevels())["PYTHONPATH"].split(os.pathsep)
    assert again.count(parts[-1]) == 1


def test_an_installed_desync_adds_no_site_packages_to_the_jobs_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "package_home", lambda: Path("/env/lib/python3.12/site-packages"))
    result = job_environment({}, Path("/run"), DebugLevels())
    assert result["PYTHONPATH"] == str(environment.startup_folder())


@pytest.mark.parametrize(
    ("base", "levels", "expected"),
    [
        ({}, DebugLevels(), ("DETAIL", "INFO", "/run/nccl-%h-%p.log")),
        ({"TORCH_DISTRIBUTED_DEBUG": "OFF", "NCCL_DEBUG": "WARN"}, DebugLevels(), ("OFF", "WARN", None)),
        (
            {"TORCH_DISTRIBUTED_DEBUG": "OFF", "NCCL_DEBUG": "WARN"},
            DebugLevels("INFO", "TRACE"),
            ("INFO", "TRACE", "/run/nccl-%h-%p.log"),
        ),
        ({"NCCL_DEBUG_FILE": "/mine"}, DebugLevels(), ("DETAIL", "INFO", "/mine")),
    ],
)
def test_debug_levels_are_the_options_else_the_users_else_ours(
    base: dict[str, str], levels: DebugLevels, expected: tuple[str, str, str | None]
) -> None:
    result = job_environment(base, Path("/run"), levels)
    assert result.get("TORCH_DISTRIBUTED_DEBUG") == base.get("TORCH_DISTRIBUTED_DEBUG")
    assert (result["DESYNC_TORCH_DEBUG"], result["NCCL_DEBUG"], result.get("NCCL_DEBUG_FILE")) == expected


def test_torchs_wrapper_is_asked_for_by_name() -> None:
    assert job_environment({}, Path("/run"), DebugLevels(torch_wrapper=True))["DESYNC_TORCH_WRAPPER"] == "1"


def test_default_directories_are_private_unique_and_latest_points_to_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["torchrun", "--nproc-per-node", "2", "dir/train.py"]
    first = run_directory.create(command, None, NOW)
    second = run_directory.create(command, None, NOW)
    assert first == tmp_path / "desync-runs" / "20261130-040506-train"
    assert second.name == "20261130-040506-train-2"
    assert (tmp_path / "desync-runs" / "latest").resolve() == second
    for folder in (first, second / "journals", second / "stacks", first.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in first.parent.iterdir()) == [first.name, second.name, "latest"]


def test_a_file_named_latest_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desync-runs").mkdir()
    (tmp_path / "desync-runs" / "latest").write_text("mine")
    run_directory.create(["x"], None, NOW)
    assert (tmp_path / "desync-runs" / "latest").read_text() == "mine"


def test_a_directory_that_is_given_must_be_absent_or_empty(tmp_path: Path) -> None:
    assert run_directory.create(["x"], tmp_path / "a" / "b", NOW) == tmp_path / "a" / "b"
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    run_directory.create(["x"], empty, NOW)
    assert stat.S_IMODE(empty.stat().st_mode) == 0o700
    with pytest.raises(RunDirectoryError, match="is not empty; choose another"):
        run_directory.create(["x"], empty, NOW)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="is a file"):
        run_directory.create(["x"], tmp_path / "file", NOW)
    with pytest.raises(RunDirectoryError, match="cannot be made"):
        run_directory.create(["x"], Path("/proc/none"), NOW)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("kind", ["folder", "link to a stranger's", "stranger's link"])
def test_a_base_that_somebody_else_has_laid_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    base, stranger = tmp_path / "desync-runs", 12345
    folder = base if kind == "folder" else tmp_path / "elsewhere"
    folder.mkdir()
    if kind != "folder":
        base.symlink_to(folder)
    os.chown(base if kind == "stranger's link" else folder, stranger, -1, follow_symlinks=False)
    with pytest.raises(RunDirectoryError, match=r"belongs to somebody else \(user 12345\); choose another .* --run-dir"):
        run_directory.create(["x"], None, NOW)
    assert list(folder.iterdir()) == []
    os.chown(base if kind == "stranger's link" else folder, os.geteuid(), -1, follow_symlinks=False)
    assert run_directory.create(["x"], None, NOW).parent == base


def test_a_file_system_on_which_nothing_is_ours_is_no_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desync-runs").mkdir()
    everybody = os.stat_result((0o40700, 1, 1, 1, 12345, 1, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda path: everybody)
    monkeypatch.setattr(os, "fstat", lambda handle: everybody)
    run_directory.create(["x"], None, NOW)


def test_the_launch_line_is_written_into_no_file_that_lay_there_before(tmp_path: Path) -> None:
    trap = tmp_path / f".run.json.{os.getpid()}"
    trap.write_text("")
    trap.chmod(0o666)
    save(RunRecord(("torchrun", "--token=secret"), 1, "here", 1), tmp_path)
    assert (trap.read_text(), stat.S_IMODE((tmp_path / "run.json").stat().st_mode)) == ("", 0o600)
    assert sorted(path.name for path in tmp_path.iterdir()) == [trap.name, "run.json"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["torchrun", "a/b/train.py"], "train"),
        (["/usr/bin/mpirun", "prog"], "mpirun"),
        (["../../etc/x\x1b[31m y"], "x_31m_y"),
        (["…"], "job"),
        (["x" * 300], "x" * 40),
    ],
)
def test_names_of_commands_are_safe_as_file_names(command: list[str], name: str) -> None:
    assert run_directory.command_name(command) == name


def test_a_command_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="command not found: 'no such'"):
        find_program("no such", os.environ["PATH"])
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(LaunchError, match="not executable"):
        find_program(str(script), os.environ["PATH"])
