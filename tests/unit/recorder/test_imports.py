"""Waiting for ``torch.distributed``: here for a module of the test's, found by an ordinary finder."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from desync.recorder import imports, install

TARGET = "desync_test_target"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[mock.Mock]:
    (tmp_path / f"{TARGET}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "TARGET", TARGET)
    monkeypatch.delenv("DESYNC_RUN_DIR", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with mock.patch.object(install, "distributed_imported") as called:
        yield called
    sys.modules.pop(TARGET, None)


def finders() -> list[object]:
    return [finder for finder in sys.meta_path if isinstance(finder, imports._Finder)]


def test_the_recorder_is_installed_once_right_after_the_modules_own_code(installed: mock.Mock) -> None:
    imports.arm()
    installed.assert_not_called()
    module = importlib.import_module(TARGET)
    installed.assert_called_once_with(module)
    assert module.value == 1
    assert finders() == []
    importlib.reload(module)
    installed.assert_called_once()


def test_asking_where_the_module_is_does_not_use_the_wait_up(installed: mock.Mock) -> None:
    imports.arm()
    assert importlib.util.find_spec(TARGET) is not None
    assert importlib.util.find_spec(TARGET) is not None
    installed.assert_not_called()
    module = importlib.import_module(TARGET)
    installed.assert_called_once_with(module)


def test_a_module_that_is_there_already_is_taken_at_once(installed: mock.Mock) -> None:
    module = importlib.import_module(TARGET)
    imports.arm()
    installed.assert_called_once_with(module)
    assert finders() == []


def test_a_module_that_another_finder_finds_is_seen(installed: mock.Mock) -> None:
    """As those of editable installations, and of packages in archives."""

    class Loader(importlib.abc.Loader):
        def exec_module(self, module: ModuleType) -> None:
            module.__dict__["value"] = 2

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
            return importlib.machinery.ModuleSpec(name, Loader()) if name == TARGET else None

    sys.meta_path.insert(0, Finder())
    imports.arm()
    module = importlib.import_module(TARGET)
    installed.assert_called_once_with(module)
    assert module.value == 2


def test_a_finder_of_the_old_kind_is_left_to_python(installed: mock.Mock) -> None:
    class Finder:
        def find_module(self, *_: object) -> None:
            """As finders before Python 3.4, which 3.11 still takes."""

    imports.arm()
    (finder,) = [finder for finder in sys.meta_path if isinstance(finder, imports._Finder)]
    sys.meta_path.append(Finder())  # type: ignore[arg-type]  # the point
    assert finder.find_spec("of_nobody", None) is None
    assert finder.find_spec(TARGET, []) is None
    sys.meta_path.pop()
    assert importlib.import_module(TARGET).value == 1


def test_finders_of_several_installations_do_not_ask_each_other(installed: mock.Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    imports.arm()
    imports.arm()
    assert len(finders()) == 1
    other = importlib.util.spec_from_file_location(imports.__name__, imports.__file__)
    assert other is not None
    assert other.loader is not None
    again = importlib.util.module_from_spec(other)
    other.loader.exec_module(again)
    monkeypatch.setattr(again, "TARGET", TARGET)  # torch may have been imported by a test before
    again.arm()
    assert len(sys.meta_path[: sys.meta_path.index(finders()[0]) + 1]) == 1
    sys.meta_path.insert(0, again._Finder())  # an earlier version of it, which does not look first
    module = importlib.import_module(TARGET)
    installed.assert_called_once_with(module)


def test_a_loader_that_takes_no_wrapper_still_loads(installed: mock.Mock, capsys: pytest.CaptureFixture[str]) -> None:
    class Loader:
        __slots__ = ()

        def create_module(self, _spec: object) -> None:
            """Python makes an ordinary one."""

        def exec_module(self, module: ModuleType) -> None:
            module.__dict__["value"] = 3

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
            return importlib.machinery.ModuleSpec(name, Loader()) if name == TARGET else None  # type: ignore[arg-type]

    sys.meta_path.insert(0, Finder())
    imports.arm()
    assert importlib.import_module(TARGET).value == 3
    installed.assert_not_called()
    assert "the recorder cannot be installed: AttributeError" in capsys.readouterr().err


def test_other_modules_of_the_same_archive_are_not_taken_for_it(
    installed: mock.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{TARGET}.py").unlink()
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr(f"{TARGET}.py", "value = 4")
        archive.writestr(f"{TARGET}_other.py", "value = 5")
    monkeypatch.syspath_prepend(str(tmp_path / "modules.zip"))
    imports.arm()
    module = importlib.import_module(TARGET)
    assert importlib.import_module(f"{TARGET}_other").value == 5
    sys.modules.pop(f"{TARGET}_other")
    installed.assert_called_once_with(module)


def test_an_installation_that_fails_costs_the_import_nothing(installed: mock.Mock, capsys: pytest.CaptureFixture[str]) -> None:
    installed.side_effect = RuntimeError("broken")
    imports.arm()
    assert importlib.import_module(TARGET).value == 1
    assert "the recorder cannot be installed: RuntimeError: broken" in capsys.readouterr().err


def test_a_module_that_fails_by_itself_fails_as_before(installed: mock.Mock, tmp_path: Path) -> None:
    (tmp_path / f"{TARGET}.py").write_text("raise ImportError('no backend')\n")
    imports.arm()
    with pytest.raises(ImportError, match="no backend"):
        importlib.import_module(TARGET)
    installed.assert_not_called()
    (tmp_path / f"{TARGET}.py").write_text("value = 12345\n")
    importlib.invalidate_caches()
    importlib.import_module(TARGET)
    installed.assert_called_once()
