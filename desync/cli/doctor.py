"""``desync doctor``: can desync do its work on this machine, in this environment?  Each problem comes with its remedy."""

from __future__ import annotations

import argparse
import enum
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NAME = "doctor"
HELP = "check ptrace rights, py-spy, torch, the hook and disk space; each problem with its remedy"

OLDEST_TORCH = (2, 4)
DISK_NEEDED = 1 << 30
"""Bytes: journals of a hundred ranks, and a job's output."""
_LIMIT_S = 60.0
"""A first import of torch from a cold disk can take most of it."""
_VICTIM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(os.getppid()), 0, 0, 0)  # PR_SET_PTRACER, as the recorder does in each rank
print("ready", flush=True)
sys.stdin.read()
"""
_TORCH = "import torch, torch.distributed as d; print(torch.__version__, d.is_available(), d.is_nccl_available(), sep='\\n')"
_HOOK = "desync.recorder.selftest"


class State(str, enum.Enum):
    """What a check found."""

    FINE = "ok"
    PROBLEM = "!!"
    UNKNOWN = "??"
    """It could not be checked; that alone is no problem."""


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question."""

    what: str
    state: State
    detail: str
    remedy: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    place = "where runs will be recorded (default: %(default)s)"
    parser.add_argument("--run-dir", type=Path, default=Path("desync-runs"), help=place)


def run(arguments: argparse.Namespace) -> int:
    """Print what each check found; exit status 0 if there is no problem, else 1."""
    from desync.report.text import clean

    problems = 0
    for check in checks(arguments.run_dir):
        problems += check.state is State.PROBLEM
        print(f"{check.state.value}  {check.what:13}  {clean(check.detail)}", flush=True)
        if check.remedy:
            print(f"{'':4}{'':13}  -> {clean(check.remedy)}", flush=True)
    print("no problem found" if not problems else f"{problems} problem{'s' if problems > 1 else ''} found")
    return 1 if problems else 0


def checks(run_dir: Path) -> Iterator[Check]:
    """All checks, cheap ones first."""
    py_spy = find_py_spy()
    questions: tuple[Callable[[], Check], ...] = (
        lambda: check_disk(run_dir),
        check_sitecustomize,
        lambda: check_py_spy(py_spy),
        lambda: check_ptrace(py_spy),
        check_torch,
        check_hook,
    )
    for question in questions:
        yield question()


def check_disk(run_dir: Path) -> Check:
    """Whether a run can be recorded there."""
    place = run_dir.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    remedy = "give --run-dir on another disk, or make room"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Check("run directory", State.PROBLEM, f"{place} cannot be written to", "give --run-dir where you may write")
    free = shutil.disk_usage(place).free
    detail = f"{free / (1 << 30):.1f} GiB free at {place}"
    if free < DISK_NEEDED:
        return Check("run directory", State.PROBLEM, f"only {detail}", remedy)
    return Check("run directory", State.FINE, detail)


def check_sitecustomize() -> Check:
    """Whether the environment has a ``sitecustomize`` of its own, which desync's start-up hides and then runs."""
    spec = importlib.util.find_spec("sitecustomize")
    if spec is None or spec.origin is None:
        return Check("start-up", State.FINE, "there is no other sitecustomize")
    return Check("start-up", State.FINE, f"another sitecustomize, {spec.origin}, will be run after desync's own")


def find_py_spy() -> str | None:
    """The py-spy of this environment, or the first on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def check_py_spy(py_spy: str | None) -> Check:
    """Whether py-spy is there and runs."""
    remedy = f"{sys.executable} -m pip install py-spy"
    if py_spy is None:
        return Check("py-spy", State.PROBLEM, "not found: a report will have no stacks from outside", remedy)
    status, output = _output([py_spy, "--version"])
    if status != 0:
        return Check("py-spy", State.PROBLEM, f"{py_spy} does not run: {_last_line(output)}", remedy)
    return Check("py-spy", State.FINE, f"{output.strip()} at {py_spy}")


def check_ptrace(py_spy: str | None) -> Check:
    """Whether the stack of a process that was started from here can be read."""
    if py_spy is None:
        return Check("stacks", State.UNKNOWN, "cannot be checked without py-spy")
    with _victim() as pid:
        status, output = _output([py_spy, "dump", "--pid", str(pid)])
    if status == 0 and "<module>" in output:
        return Check("stacks", State.FINE, "py-spy can read the stack of a child process")
    return Check("stacks", State.PROBLEM, f"py-spy cannot read a child's stack: {_last_line(output)}", ptrace_remedy())


def ptrace_remedy(proc: Path = Path("/proc")) -> str:
    """What to do where ptrace is refused, judged by what ``proc`` says of the machine and of this process."""
    scope = _read(proc / "sys/kernel/yama/ptrace_scope").strip()
    if scope == "3":
        return "this machine forbids ptrace until it is started again (kernel.yama.ptrace_scope=3): ask its administrator"
    if scope == "2":
        return "allow it for programs of one user: sudo sysctl kernel.yama.ptrace_scope=1"
    status = dict(line.split(":", 1) for line in _read(proc / "self/status").splitlines() if ":" in line)
    if status.get("Seccomp", "0").strip() != "0":
        kubernetes = "Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]"
        return f"a container forbids it: start the container with --cap-add=SYS_PTRACE ({kubernetes})"
    return "run desync as the user that runs the job"


def check_torch() -> Check:
    """Whether torch is there, can be imported, and is new enough; asked in another process, as desync needs none."""
    remedy = f"install torch {'.'.join(map(str, OLDEST_TORCH))} or newer into this environment ({sys.executable})"
    status, output = _output([sys.executable, "-c", _TORCH])
    lines = output.split()
    if status != 0 or len(lines) < 3:
        return Check("torch", State.PROBLEM, f"cannot be imported: {_last_line(output)}", remedy)
    version, distributed, nccl = lines[-3:]
    if _version(version) < OLDEST_TORCH:
        return Check("torch", State.PROBLEM, f"torch {version} is too old", remedy)
    if distributed != "True":
        return Check("torch", State.PROBLEM, f"torch {version} was built without torch.distributed", remedy)
    return Check("torch", State.FINE, f"torch {version}, {'with' if nccl == 'True' else 'without'} NCCL")


def check_hook() -> Check:
    """Whether the recorder can see this torch's collectives."""
    remedy = "please report this with the version of torch; reports will know less until it is repaired"
    if importlib.util.find_spec(_HOOK) is None:
        return Check("hook", State.UNKNOWN, "cannot be checked: this desync has no self-test")
    _, output = _output([sys.executable, "-m", _HOOK])
    try:
        answer = json.loads(_last_line(output))
        fine, detail = bool(answer["ok"]), str(answer["detail"])
    except (ValueError, KeyError, TypeError):
        return Check("hook", State.UNKNOWN, f"cannot be checked: {_last_line(output)}")
    return Check("hook", State.FINE, detail) if fine else Check("hook", State.PROBLEM, detail, remedy)


def _version(text: str) -> tuple[int, ...]:
    """Major and minor number: "2.13.0+cpu" gives (2, 13); what is no number counts as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split(".")[:2])


def _output(command: list[str]) -> tuple[int | None, str]:
    """Exit status and output of a command, standard error included; status None if it could not run or was late."""
    try:
        done = subprocess.run(  # noqa: S603 - programs of this environment, named in this file
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"not over after {_LIMIT_S:g} s"
    except OSError as error:
        return None, str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@contextmanager
def _victim() -> Iterator[int]:
    """A child process that waits in Python; its process id."""
    command = [sys.executable, "-c", _VICTIM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own program
        try:
            if process.stdout is not None:
                process.stdout.readline()
            yield process.pid
        finally:
            process.kill()
