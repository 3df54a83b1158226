"""What a rank brings along: helpers that import torch as well, a wrapper around the training, and objects that cannot be asked.

Rank 0 starts a helper before it imports torch; rank 1 is a wrapper that starts the training as its child.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
RANK = os.environ["RANK"]

HELPER = """
import sys
import torch
import torch.distributed as dist
print("ready", flush=True)
sys.stdin.readline()
dist.init_process_group("gloo", sys.argv[1], rank=0, world_size=1)
dist.all_reduce(torch.ones(7))
print("done", flush=True)
sys.stdin.readline()
"""


class OldFinder:
    """Of the kind that has no ``find_spec``."""

    def find_module(self, *_: object) -> None:
        """Find nothing."""


class TouchyError(Exception):
    """Nor can it be written."""

    def __str__(self) -> str:
        raise LookupError("no words")


class Touchy:
    """Whatever it is asked raises, as settings that are resolved late."""

    def __hash__(self) -> int:
        raise TouchyError

    def __eq__(self, _other: object) -> bool:
        raise TouchyError

    def __bool__(self) -> bool:
        raise TouchyError

    def __str__(self) -> str:
        raise TouchyError


def has_journal(pid: int) -> bool:
    return any(Path(os.environ["DESYNC_RUN_DIR"], "journals").glob(f"*.{pid}.journal"))


def begin_helper() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HELPER, f"file://{FOLDER}/alone"]
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answer(helper)
    return helper


def answer(helper: subprocess.Popen[str], line: str = "") -> None:
    assert helper.stdin is not None
    assert helper.stdout is not None
    helper.stdin.write(line)
    helper.stdin.flush()
    assert helper.stdout.readline() in ("ready\n", "done\n")


def train(helper: subprocess.Popen[str] | None) -> dict[str, object]:
    helpers = helper is not None and has_journal(helper.pid)
    sys.meta_path.insert(0, OldFinder())  # type: ignore[arg-type]  # the point
    import torch
    import torch.distributed as dist

    at_import = has_journal(os.getpid())
    dist.init_process_group("gloo")
    make_groups(dist)
    caught = exceptions(dist, torch)
    if helper is not None:
        answer(helper, "go\n")
        assert has_journal(helper.pid)
    dist.all_reduce(torch.ones(5))
    dist.destroy_process_group()
    return {"pid": os.getpid(), "helpers": helpers, "at_import": at_import, "caught": caught}


def make_groups(dist: object) -> None:
    for ranks in ((rank for rank in range(2)), iter([0, 1]), [0, 1], {1, 0}, range(2)):
        dist.new_group(ranks)  # type: ignore[attr-defined]
    dist.new_group(ranks=map(int, "01"))  # type: ignore[attr-defined]


def exceptions(dist: object, torch: object) -> list[str]:
    import desync

    caught = []
    for error in (RuntimeError("bad batch", Touchy()), TouchyError(Touchy()), SystemExit(Touchy())):
        try:
            try:
                raise error
            except BaseException:  # noqa: BLE001 - the errors are of several kinds
                dist.all_reduce(torch.ones(3))  # type: ignore[attr-defined]  # tell the others
                desync.mark(Touchy(), Touchy())  # type: ignore[arg-type]  # wrong, but no reason to end
                sys.exit(3)
        except BaseException as raised:  # noqa: BLE001 - whatever reaches the job
            caught.append(f"{type(raised).__name__} {getattr(raised, 'code', None)}")
    return caught


def main() -> None:
    if RANK == "1" and "child" not in sys.argv:
        sys.exit(subprocess.run([sys.executable, __file__, *sys.argv[1:], "child"], check=False).returncode)
    helper = begin_helper() if RANK == "0" else None
    (FOLDER / f"{RANK}.json").write_text(json.dumps(train(helper)))
    if helper is not None:
        helper.communicate("end\n")


if __name__ == "__main__":
    main()
