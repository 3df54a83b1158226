"""The file that every Python process of a watched job runs at its start; real processes, without torch."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path

import pytest

import desync
from desync.watch.environment import startup_folder
from tests.conftest import ROOT, run_to_end

PROGRAM = """
import multiprocessing, os, sys

def say():
    import desync
    print(desync.__file__, flush=True)

if __name__ == "__main__":
    say()
    os.chdir("/")
    child = multiprocessing.get_context("spawn").Process(target=say)
    child.start()
    child.join()
"""


def run(folder: Path, *command: str | Path, cwd: Path | None = None, **env: str) -> list[str]:
    """Lines that a Python command prints in a watched job, as rank 1."""
    (folder / "run").mkdir(exist_ok=True)
    path = os.pathsep.join([str(startup_folder()), str(ROOT)])
    full = {"DESYNC_RUN_DIR": str(folder / "run"), "PYTHONPATH": path, "RANK": "1", "LOCAL_RANK": "1", **env}
    job = run_to_end([sys.executable, *command], env={"DESYNC_RANK_PID": None, **full}, cwd=cwd or folder)
    assert (job.status, job.stderr) == (0, ""), job.output
    return job.stdout.splitlines()


def notes(folder: Path) -> list[str]:
    return [line for path in (folder / "run").glob("journals/*.note") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["desync.py", "desync/__init__.py"])
def test_a_module_of_the_users_that_has_our_name_is_what_the_user_gets(tmp_path: Path, name: str) -> None:
    beside = tmp_path / "scripts"
    theirs = beside / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("")
    (beside / "program.py").write_text(PROGRAM)
    assert run(tmp_path, beside / "program.py") == [str(theirs)] * 2  # in what multiprocessing starts, too
    assert run(tmp_path, "-m", "program", cwd=beside)[0] == str(theirs)
    assert run(tmp_path, "-c", "import desync; print(desync.__file__)", cwd=beside) == [str(theirs)]
    said = notes(tmp_path)
    assert len(said) == 3
    assert all(f"another package is called desync: {theirs}" in note for note in said)
    assert run(tmp_path, "-c", "import desync; print(desync.__file__)") == [desync.__file__]
    assert len(notes(tmp_path)) == 3


def test_our_own_package_beside_the_program_is_ours(tmp_path: Path) -> None:
    finders = "import sys; print([f for f in sys.meta_path if type(f).__module__ == 'desync.recorder.imports'] != [])"
    assert run(tmp_path, "-c", finders, cwd=ROOT) == ["True"]
    assert notes(tmp_path) == []


def test_a_rank_is_claimed_before_it_starts_helpers(tmp_path: Path) -> None:
    say = "import os; print(os.getpid(), os.environ.get('DESYNC_RANK_PID'), flush=True)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {say!r}])"
    own, helper = run(tmp_path, "-c", f"{say}\n{start}")
    pid = own.split()[0]
    assert own.split() == [pid, pid]
    assert helper.split()[1] == pid


NEW = (ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.AsyncFunctionDef, ast.Match)
"""What a Python of another age cannot read."""


def test_what_every_python_of_the_job_runs_is_written_so_that_each_can_read_it() -> None:
    tree = ast.parse((startup_folder() / "sitecustomize.py").read_text(), feature_version=(3, 4))
    assert [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, NEW)] == []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert functions
    assert all(node.returns is None and node.args.kwonlyargs == [] for node in functions)
    assert all(argument.annotation is None for node in functions for argument in node.args.args)


@pytest.mark.parametrize("name", ["python2.7", "python3.6", "python3.8", "python3.9"])
def test_a_python_of_another_age_says_nothing_and_runs_what_is_hidden(tmp_path: Path, name: str) -> None:
    old = shutil.which(name)
    if old is None or run_to_end([old, "-c", ""], env={}, cwd=tmp_path).status:
        pytest.skip(f"there is no {name} here")
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.hidden_ran = True")
    env = {"PYTHONPATH": os.pathsep.join([str(startup_folder()), str(tmp_path)]), "PYTHONDONTWRITEBYTECODE": "1"}
    job = run_to_end([old, "-c", "import sys; print(sys.hidden_ran)"], env=env, cwd=tmp_path)
    assert (job.status, job.stdout, job.stderr) == (0, "True\n", "")
