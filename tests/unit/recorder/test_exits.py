"""With which status a rank says that it ends.  Real processes, without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from desync.journal.reader import JournalReader
from desync.model import Exit
from tests.conftest import ROOT, run_to_end

BEGIN = """
import sys
from desync.journal.layout import RecordType
from desync.recorder import exits, session
owner = session.begin(0, 1)
exits.install(owner)

def call():
    owner.writer.operation(RecordType.OPERATION, 0, 1, 0, 0, 0, 0, 7, 0, 1)
"""


def ended(folder: Path, program: str) -> tuple[int, Exit | None]:
    """Status of the program, and what it has said of its end."""
    (folder / "program.py").write_text(BEGIN + program)
    env = {"DESYNC_RUN_DIR": str(folder / "run"), "PYTHONPATH": str(ROOT)}
    job = run_to_end([sys.executable, folder / "program.py"], env=env, cwd=folder)
    (journal,) = (folder / "run" / "journals").iterdir()
    reader = JournalReader(str(journal))
    trace = reader.trace()
    reader.close()
    assert trace is not None, job.output
    return job.status, trace.exit


@pytest.mark.parametrize(("given", "status"), [("3", 3), ("-1", 255), ("256", 0), ("'words'", 1), ("True", 1)])
def test_a_status_is_what_the_system_makes_of_it(given: str, status: int, tmp_path: Path) -> None:
    found, exit_ = ended(tmp_path, f"sys.exit({given})")
    assert exit_ is not None
    assert (found, exit_.code) == (status, status)


@pytest.mark.parametrize(
    ("afterwards", "said"),
    [
        ("for _ in range(20): call()", None),  # a rank that goes on
        ("call(); call(); sys.exit(2)", 2),
    ],
)
def test_a_sys_exit_that_the_program_catches_is_no_end(afterwards: str, said: int | None, tmp_path: Path) -> None:
    _, exit_ = ended(tmp_path, f"try: sys.exit(2)\nexcept SystemExit: pass\n{afterwards}\n")
    assert exit_ is not None
    assert exit_.code == said


def test_who_meets_the_others_on_the_way_out_still_ends_with_its_status(tmp_path: Path) -> None:
    _, exit_ = ended(tmp_path, "try: sys.exit(5)\nfinally: call(); call()\n")
    assert exit_ is not None
    assert exit_.code == 5
