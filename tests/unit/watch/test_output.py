import os
import subprocess
import sys
from pathlib import Path

import pytest

from desync.watch.output import LogTail, Output

# Starts the relay, says so, and then is killed: what stands in for a watcher that dies.
OWNER = """
import os, subprocess, sys, time
from pathlib import Path
from desync.watch.output import Output
output = Output(Path(sys.argv[1]), status_line=False)
job = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=output.stdout, stderr=output.stderr)
output.release()
if sys.argv[3] == "dies":
    os.kill(os.getpid(), 9)
print(output.finish(60), job.wait(), flush=True)
"""

BOTH = "import os\nfor n in range(200):\n os.write(1, b'\\xff\\0out%d\\n' % n)\n os.write(2, b'err%d\\r' % n)"


def start(tmp_path: Path, program: str, end: str = "waits") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "output.log"), program, end]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE)


@pytest.mark.parametrize("end", ["waits", "dies"])
def test_both_streams_arrive_byte_for_byte_and_the_log_has_both_whatever_becomes_of_the_watcher(
    tmp_path: Path, end: str
) -> None:
    with start(tmp_path, BOTH, end) as owner:
        stdout, stderr = owner.communicate(timeout=60)
    out = b"".join(b"\xff\0out%d\n" % n for n in range(200))
    err = b"".join(b"err%d\r" % n for n in range(200))
    assert stdout == out + (b"True 0\n" if end == "waits" else b"")
    assert stderr == err
    log = (tmp_path / "output.log").read_bytes()
    assert len(log) == len(out) + len(err)
    assert (tmp_path / "output.log").stat().st_mode & 0o777 == 0o600


def test_a_reader_that_goes_away_costs_the_job_nothing_and_the_log_is_whole(tmp_path: Path) -> None:
    program = """
import sys
print("first", flush=True)
sys.stdin.readline()
for n in range(1000):
    print(n, flush=True)
print("end", file=sys.stderr)
"""
    with start(tmp_path, program) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert owner.stderr is not None
        assert owner.stdout.readline() == b"first\n"
        owner.stdout.close()
        owner.stdin.write(b"\n")
        owner.stdin.close()
        assert b"end" in owner.stderr.read()
    assert (tmp_path / "output.log").read_text().count("\n") == 1002


def test_a_log_that_somebody_has_laid_there_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("")
    with pytest.raises(FileExistsError):
        Output(tmp_path / "output.log", status_line=False)


def test_output_that_others_hold_open_is_not_waited_for(tmp_path: Path) -> None:
    output = Output(tmp_path / "output.log", status_line=False)
    held = os.dup(output.stdout)
    output.release()
    output.release()
    assert not output.finish(0.1)
    os.write(held, b"late\n")
    os.close(held)


def test_on_a_terminal_a_status_line_is_wiped_before_output_that_begins_a_line(tmp_path: Path) -> None:
    program = "import os, time\nfor part in (b'a', b'b\\n', b'c\\n'):\n os.write(1, part); time.sleep(0.3)"
    code = f"""
import subprocess, sys
from pathlib import Path
from desync.watch.output import Output
output = Output(Path(sys.argv[1]), status_line=True)
job = subprocess.Popen([sys.executable, "-c", {program!r}], stdout=output.stdout, stderr=output.stderr)
output.release()
output.finish(60)
"""
    leader, follower = os.openpty()
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], stdout=follower, check=True, timeout=60)
    os.close(follower)
    shown = os.read(leader, 1000)
    os.close(leader)
    assert shown.replace(b"\r", b"") in (b"\x1b[Kab\n\x1b[Kc\n", b"\x1b[Kab\nc\n")
    assert (tmp_path / "log").read_bytes() == b"ab\nc\n"


def test_the_tail_hands_on_every_byte_once_and_knows_where_lines_end(tmp_path: Path) -> None:
    parts: list[bytes] = []
    tail = LogTail(tmp_path / "log", parts.append)
    tail.follow()
    assert tail.ends_line
    (tmp_path / "log").write_bytes(b"one")
    tail.follow()
    assert not tail.ends_line
    with (tmp_path / "log").open("ab") as file:
        file.write(b" two\n")
    tail.follow()
    tail.follow()
    assert parts == [b"one", b" two\n"]
    assert tail.ends_line
