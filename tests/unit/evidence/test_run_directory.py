import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from desync.errors import RunDirectoryError
from desync.evidence import run_directory
from desync.evidence.liveness import is_alive, process_start
from desync.evidence.run_directory import RunRecord
from desync.model import Exit, Frame, RankStacks, Stack

RANK = """
import sys
from desync.journal.writer import JournalWriter
writer = JournalWriter(sys.argv[1].replace("PID", str(__import__("os").getpid())), slots=64, heap_bytes=1 << 16)
writer.identify(0, 1)
print("ready", flush=True)
sys.stdin.read()
"""

STACKS = RankStacks(
    0, "py-spy", 9, (Stack("MainThread", (Frame("f", "a.py", 1), Frame("<module>", "a.py", 2)), holds_gil=True),)
)
RECORD = RunRecord(
    command=("torchrun", "a\udc80.py"),
    started=1,
    node=socket.gethostname(),
    hang_after_ns=5,
    exits={7: Exit(time=3, code=-9)},
    stacks={0: (STACKS,)},
    notes=("a note",),
)


def test_a_record_is_read_as_it_was_saved_and_is_private(tmp_path: Path) -> None:
    record = replace(RECORD, command=("torchrun", "a.py"), ended=8, exit_code=-9)
    run_directory.save(record, tmp_path)
    assert run_directory.read(tmp_path) == record
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_command_line_that_is_no_text_can_be_saved(tmp_path: Path) -> None:
    run_directory.save(RECORD, tmp_path)
    assert run_directory.read(tmp_path).command[0] == "torchrun"


def test_what_a_killed_watcher_left_is_evidence_while_the_job_runs_and_after_it(tmp_path: Path) -> None:
    run_directory.save(RECORD, tmp_path)
    (tmp_path / "journals").mkdir()
    place = tmp_path / "journals" / f"a0.{socket.gethostname()}.PID.journal"
    extra = replace(STACKS, source="faulthandler")
    with subprocess.Popen(
        [sys.executable, "-c", RANK, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        running = run_directory.load(tmp_path, stacks=(extra,))
        assert not running.ended
        assert running.stacks == (STACKS, extra)
        assert [(trace.rank, trace.pid) for trace in running.traces] == [(0, rank.pid)]
        rank.stdin.close()
    after = run_directory.load(tmp_path)
    assert after.ended
    assert after.observed_at is not None
    assert "the watcher did not see the job's end" in after.notes
    assert after.hang_after_ns == 5


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "[" * 100_000, '{"schema": "other"}', '{"schema": "desync.run/1"}'])
def test_a_directory_that_is_no_run_is_refused_with_a_remedy(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(RunDirectoryError, match="is not the directory of a run") as caught:
        run_directory.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_damaged_field_is_refused(tmp_path: Path) -> None:
    run_directory.save(RECORD, tmp_path)
    content = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**content, "exits": {"x": {}}}))
    with pytest.raises(RunDirectoryError):
        run_directory.read(tmp_path)


def test_a_process_is_told_apart_from_a_later_one_of_its_number() -> None:
    own = process_start(os.getpid())
    assert own
    assert is_alive(os.getpid(), own)
    assert is_alive(os.getpid(), 0)
    assert not is_alive(os.getpid(), own + 1)
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(child.pid, 0), "a zombie runs no more"
