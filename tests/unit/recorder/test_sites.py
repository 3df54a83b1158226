from __future__ import annotations

import os
import sys
import sysconfig
import threading
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest

from desync.journal.writer import JournalWriter
from desync.recorder import sites
from desync.recorder.sites import Sites, of_others, users_frames, walk

SITE_PACKAGES = sysconfig.get_path("purelib")


@pytest.fixture(autouse=True)
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "_origins", {})


def run_in(file: str, source: str, **names: Any) -> dict[str, Any]:
    """Run a source as if it stood in ``file``."""
    scope: dict[str, Any] = dict(names)
    exec(compile(source, file, "exec"), scope)
    return scope


def walk_through(*files: str) -> tuple[list[tuple[str, str, int]], tuple[CodeType, ...]]:
    """What is found on a stack that goes through files, outermost first, each calling from its line 2."""
    function: Any = lambda: walk(sys._getframe(1))  # noqa: E731 - it takes the place of the functions made below
    for file in reversed(files):
        function = run_in(file, "def step(): return (\n inner())", inner=function)["step"]
    found: tuple[list[tuple[str, str, int]], tuple[CodeType, ...]] = function()
    return found


@pytest.mark.parametrize(
    ("file", "origin"),
    [
        ("/home/ada/train.py", "user"),
        ("<string>", "user"),
        ("<ipython-input-1-abc>", "user"),
        (f"{SITE_PACKAGES}/lightning/trainer.py", "installed"),
        (f"{SITE_PACKAGES}/torch/distributed/distributed_c10d.py", "machinery"),
        ("/usr/lib/python3/dist-packages/accelerate/x.py", "installed"),
        (os.path.join(sysconfig.get_path("scripts"), "torchrun"), "installed"),
        (threading_file := os.path.join(sysconfig.get_path("stdlib"), "threading.py"), "machinery"),
        (sites.__file__, "machinery"),
        ("<frozen importlib._bootstrap>", "machinery"),
        ("<eval_with_key>.7", "machinery"),
        ("", "machinery"),
        ("/tmp/torchinductor_ada/ab/cabc.py", "machinery"),
        ("/scratch/inductor/ab/cabc.py", "machinery"),
    ],
)
def test_files_are_the_users_another_packages_or_machinery(monkeypatch: pytest.MonkeyPatch, file: str, origin: str) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/inductor")
    assert sites._origin(file) == origin


def test_a_relative_file_is_the_users_even_if_its_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert sites._origin("train.py") == "user"


def test_the_table_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MAX_ORIGINS", 10)
    for number in range(100):
        sites._origin(f"<generated {number}>")
    assert len(sites._origins) <= 10


def test_the_users_frames_are_those_outside_of_torch_and_other_packages() -> None:
    torch_file, package = f"{SITE_PACKAGES}/torch/x.py", f"{SITE_PACKAGES}/lightning/x.py"
    frames, codes = walk_through("/home/ada/main.py", package, "/home/ada/model.py", torch_file)
    mine = [frame for frame in frames if frame[1].startswith("/home/ada")]
    assert mine == [("step", "/home/ada/model.py", 2), ("step", "/home/ada/main.py", 2)]
    assert package not in {file for _, file, _ in frames}
    assert len(codes) >= 4


def test_where_the_user_has_no_frame_another_package_has(monkeypatch: pytest.MonkeyPatch) -> None:
    package = f"{SITE_PACKAGES}/lightning/x.py"
    monkeypatch.setattr(sites, "_STDLIB", (*sites._STDLIB, "/"))  # so that the test's own frames are nobody's
    monkeypatch.setitem(sites._origins, "<string>", "machinery")  # and those of whatever started the tests
    frames, _ = walk_through(package)
    assert frames[0] == ("step", package, 2)


def test_only_in_a_thread_of_its_own_is_torch_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.path.join(SITE_PACKAGES, "torch")
    monkeypatch.setattr(sites, "_torch_folder", lambda: folder + os.sep)
    files = [f"{folder}/distributed/checkpoint/saver.py", f"{folder}/distributed/distributed_c10d.py"]
    found: list[list[tuple[str, str, int]]] = []

    def run() -> None:
        function: Any = lambda: found.append(walk(sys._getframe(1))[0])  # noqa: E731 - see walk_through
        for file in reversed(files):
            function = run_in(file, "def step(): return (\n inner())", inner=function)["step"]
        function()

    thread = threading.Thread(target=run_in(files[0], "def save(): run()", run=run)["save"])
    monkeypatch.setattr(sites, "_PACKAGE", os.path.dirname(__file__) + os.sep)  # so that run() itself is machinery
    thread.start()
    thread.join()
    assert [(name, file) for name, file, _ in found[0]] == [("step", files[0]), ("save", files[0])]


def test_equal_stacks_are_one_site_and_another_line_is_another(tmp_path: Path) -> None:
    known = Sites(JournalWriter(str(tmp_path / "j"), slots=4, heap_bytes=1 << 16))
    numbers = [known.here(1) for _ in range(3)]
    numbers.append(known.here(1))
    assert numbers[0] == numbers[1] == numbers[2] != numbers[3]
    assert known.here(10_000, fallback=77) == 77
    assert known.at(None) == 0


def test_a_site_without_room_is_not_taken_for_none(tmp_path: Path) -> None:
    writer = JournalWriter(str(tmp_path / "j"), slots=4, heap_bytes=64)
    known = Sites(writer)
    assert known.here(1, fallback=5) == -1


def test_stacks_beyond_the_limit_are_found_but_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "MAX_SITES", 2)
    known = Sites(JournalWriter(str(tmp_path / "j"), slots=4, heap_bytes=1 << 20))
    functions = [run_in(f"/home/ada/{n}.py", "def f(): return here(1)", here=known.here)["f"] for n in range(5)]
    assert len({function() for function in functions}) == 5
    assert len(known._known) == 2


def raised(function: Any) -> Exception:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - the point is any exception
        return error
    raise AssertionError("nothing was raised")


def test_an_exceptions_site_is_the_line_that_raised_not_the_one_that_handles() -> None:
    user = run_in("/home/ada/train.py", "def step():\n  x = 1\n  return outer()", outer=lambda: outer())
    outer = run_in(f"{SITE_PACKAGES}/torch/x.py", "def outer(): raise ValueError")["outer"]
    error = raised(user["step"])
    assert users_frames(error.__traceback__)[1] == ("step", "/home/ada/train.py", 3)
    assert users_frames(None)[:1] != [("step", "/home/ada/train.py", 3)]


def test_an_exception_of_the_recorder_is_told_from_one_that_a_handler_raised() -> None:
    ours = run_in(sites.__file__, "def record(): return callback()", callback=lambda: json_fails())
    json_fails = run_in(threading_file, "def fails(): raise ValueError")["fails"]
    handler = run_in("/home/ada/train.py", "def handler(): raise TimeoutError")["handler"]
    inner = run_in(sites.__file__, "def record(): return handler()", handler=handler)["record"]
    trace = raised(inner).__traceback__
    assert trace is not None
    assert of_others(trace.tb_next)
    own = raised(ours["record"]).__traceback__
    assert own is not None
    assert own.tb_next is not None
    assert own.tb_next.tb_next is not None
    assert not of_others(own.tb_next.tb_next.tb_next)
    assert not of_others(None)


@pytest.mark.parametrize(("name", "others"), [("__hash__", False), ("__call__", True), ("hash", True)])
def test_special_methods_of_the_job_that_the_recorder_calls_are_its_own_doing(name: str, others: bool) -> None:
    method = run_in("/home/ada/train.py", f"def {name}(): return deeper()\ndef deeper(): raise ValueError")[name]
    inner = run_in(sites.__file__, "def record(): return method()", method=method)["record"]
    trace = raised(inner).__traceback__
    assert trace is not None
    assert of_others(trace.tb_next) == others


def test_functions_have_their_qualified_names_where_python_knows_them() -> None:
    class Model:
        def forward(self) -> FrameType:
            return sys._getframe()

    name = sites.function_name(Model().forward().f_code)
    assert name.endswith("Model.forward" if sys.version_info >= (3, 11) else "forward")
    assert sites.is_recorders(walk.__code__)
    assert not sites.is_recorders(SimpleNamespace(co_filename="/home/ada/train.py"))  # type: ignore[arg-type]  # enough of one
