"""The house stands as CONTRIBUTING.md says: which way imports go, how long things are, and what must not be in the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "desync"

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "model": set(),
    "journal": {"errors", "model"},
    "recorder": {"errors", "model", "journal"},
    "evidence": {"errors", "model", "journal"},
    "stacks": {"errors", "model"},
    "diagnosis": {"model"},
    "report": {"errors", "model"},
    "watch": {"errors", "model", "journal", "recorder", "evidence", "stacks", "diagnosis", "report"},
    "cli": {"errors", "model", "journal", "recorder", "evidence", "stacks", "diagnosis", "report", "watch"},
    "__main__": {"cli"},
    "__init__": set(),
}
TORCH_ALLOWED = ("desync.recorder", "desync.watch.nodes")
IMPURE = {"os", "io", "pathlib", "time", "datetime", "random", "subprocess", "socket", "threading", "sys", "shutil", "tempfile"}

FILE_LINES = 450
FUNCTION_LINES = 40
LONGER_FUNCTIONS = {
    "desync/recorder/hook.py make_recorder": "the path of every operation: each call that is split off costs every operation",
}


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module of a package, by dotted name."""
    return {".".join(path.relative_to(package.parent).with_suffix("").parts): path for path in sorted(package.rglob("*.py"))}


def imports_of(source: str, module: str) -> Iterator[str]:
    """Dotted names of everything that a module imports, also inside functions, relatively, or by import_module("…")."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=target, names=names, level=level):
                base = module.split(".")[:-level] if level else []
                start = ".".join([*base, *([target] if target else [])])
                yield from (f"{start}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(target)), *_]):
                if name in {"import_module", "__import__"}:
                    yield target


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def wrong_arrows(module: str, source: str) -> list[str]:
    own = part_of(module)
    allowed = MAY_IMPORT[own] | {own}
    wrong = []
    for target in imports_of(source, module):
        top, _, rest = target.partition(".")
        part = rest.split(".")[0]
        if top == "desync" and part in MAY_IMPORT and part not in allowed:
            wrong.append(f"{module} imports {target}")
        if top == "fault_scenarios" and own != "cli":
            wrong.append(f"{module} imports {target}")
    return wrong


def roots(source: str, module: str) -> set[str]:
    return {target.partition(".")[0] for target in imports_of(source, module)}


def test_the_import_scanner_sees_every_kind_of_import() -> None:
    source = """
import torch.distributed as dist
from desync.watch import nodes
def late():
    from ..cli import main
    from . import writer
    importlib.import_module("rich.text")
"""
    assert set(imports_of(source, "desync.journal.reader")) == {
        "torch.distributed",
        "desync.watch.nodes",
        "desync.cli.main",
        "desync.journal.writer",
        "rich.text",
    }
    assert len(wrong_arrows("desync.journal.reader", source)) == 2


def test_every_part_of_the_house_is_known() -> None:
    parts = {part_of(module) for module in modules() if module != "desync.__init__"}
    assert parts <= MAY_IMPORT.keys()
    assert {"journal", "recorder", "diagnosis", "report", "watch", "cli"} <= parts


def test_imports_go_one_way() -> None:
    wrong = [line for module, path in modules().items() for line in wrong_arrows(module, path.read_text(encoding="utf-8"))]
    assert wrong == []


def test_torch_stays_in_the_recorder_and_the_recorder_stays_light() -> None:
    wrong = []
    for module, path in modules().items():
        found = roots(path.read_text(encoding="utf-8"), module)
        if "torch" in found and not module.startswith(TORCH_ALLOWED):
            wrong.append(f"{module} imports torch")
        if module.startswith("desync.recorder") and found & {"rich", "psutil"}:
            wrong.append(f"{module} imports {found & {'rich', 'psutil'}}")
    assert wrong == []


def test_diagnosis_touches_nothing_outside_its_arguments() -> None:
    wrong = []
    for module, path in modules().items():
        if part_of(module) != "diagnosis":
            continue
        source = path.read_text(encoding="utf-8")
        wrong += [f"{module} imports {name}" for name in roots(source, module) & IMPURE]
        calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        wrong += [f"{module} calls {name}" for name in names & {"print", "open", "input"}]
    assert wrong == []


def test_files_and_functions_are_small() -> None:
    wrong = []
    for path in [*modules().values(), *modules(ROOT / "fault_scenarios").values()]:
        name = path.relative_to(ROOT).as_posix()
        source = path.read_text(encoding="utf-8")
        lines = source.count("\n")
        if lines > FILE_LINES:
            wrong.append(f"{name} has {lines} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES and f"{name} {node.name}" not in LONGER_FUNCTIONS:
                    wrong.append(f"{name}:{node.lineno} {node.name} has {length} lines")
    assert wrong == []


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git repository: there is no list of tracked files")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    # Homes of invented people may stand in examples; real ones, the place of this checkout and of its environment may not.
    homes = r"/(?:home|Users)/(?!(?:you|user|ada|adamant|alice|bob)/)[a-z][\w.-]*/|/[r]oot/\w"
    places = [ROOT] if sys.prefix == sys.base_prefix else [ROOT, Path(sys.prefix)]
    pattern = re.compile("|".join([homes, *(re.escape(f"{place}/") for place in places)]))
    assert pattern.search(f"see {ROOT}/README.md")
    assert pattern.search("/home/" + "somebody/train.py")
    wrong = []
    for path in tracked_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        wrong += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert wrong == []


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], {"torch", "rich", "psutil"}),
        (["report", "no-such-run"], {"torch", "psutil"}),
        (["scenarios", "list"], {"torch"}),
        (["watch", "--help"], {"torch", "rich"}),
        (["inspect", "--help"], {"torch", "rich", "psutil"}),
    ],
)
def test_a_command_loads_only_what_it_needs(arguments: list[str], unwanted: set[str]) -> None:
    program = (
        "import sys\nfrom desync.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "desync.cli.main" in loaded
    assert not loaded & unwanted
