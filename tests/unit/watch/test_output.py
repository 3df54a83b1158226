import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from desync.watch.output import LogTail, Output
from desync.watch.relay import Target

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


def start(
    tmp_path: Path, program: str, end: str = "waits", stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "output.log"), program, end]
    return subprocess.Popen(command, stdout=stdout, stderr=stderr, stdin=subprocess.PIPE)


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


ALTERNATES = "import os\nfor n in range(300):\n os.write(1 + n % 2, b'%d\\n' % n)"
IN_ORDER = b"".join(b"%d\n" % n for n in range(300))


def test_streams_that_lead_to_one_file_keep_their_order(tmp_path: Path) -> None:
    with start(tmp_path, ALTERNATES, stderr=subprocess.STDOUT) as owner:
        shown, _ = owner.communicate(timeout=60)
    assert shown == IN_ORDER + b"True 0\n"
    assert (tmp_path / "output.log").read_bytes() == IN_ORDER


def test_streams_that_lead_to_one_terminal_keep_their_order(tmp_path: Path) -> None:
    leader, follower = os.openpty()
    with start(tmp_path, ALTERNATES, stdout=follower, stderr=follower) as owner:
        os.close(follower)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(leader, 65536):
                shown += part
        assert owner.wait(60) == 0
    os.close(leader)
    assert shown.replace(b"\r", b"") == IN_ORDER + b"True 0\n"
    assert (tmp_path / "output.log").read_bytes() == IN_ORDER


def test_a_reader_that_goes_away_is_gone_for_the_job_too_and_the_log_has_all_until_then(tmp_path: Path) -> None:
    program = """
import os, sys
os.write(1, b"first\\n")
sys.stdin.readline()
try:
    for n in range(200_000):
        os.write(1, b"%07d\\n" % n)
except BrokenPipeError:
    os.write(2, b"nobody reads\\n")
"""
    with start(tmp_path, program) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert owner.stderr is not None
        assert owner.stdout.readline() == b"first\n"
        owner.stdout.close()
        owner.stdin.write(b"\n")
        owner.stdin.close()
        assert owner.stderr.read().startswith(b"nobody reads\n")
    first, *numbers, end = (tmp_path / "output.log").read_text().split()[:-1]
    assert (first, end) == ("first", "nobody")
    assert numbers == [f"{n:07}" for n in range(len(numbers))]
    assert numbers


def test_a_full_disk_is_said_once_and_costs_the_job_and_the_log_nothing(tmp_path: Path) -> None:
    program = "import os\nfor n in range(5):\n os.write(1, b'x' * 65536)\nos.write(2, b'end')"
    with Path("/dev/full").open("wb") as full, start(tmp_path, program, stdout=full.fileno()) as owner:
        _, shown = owner.communicate(timeout=60)
    said = b"\ndesync: the job's standard output cannot be written (No space left on device): some of it is lost\n"
    assert shown.count(said) == 1
    assert shown.count(b"desync:") == 1
    log = (tmp_path / "output.log").read_bytes()
    assert log.replace(b"end", b"") == b"x" * (5 * 65536)


def test_a_file_that_could_not_be_written_is_tried_anew(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").touch()
    number = os.open(tmp_path / "out", os.O_RDONLY)
    target = Target(number, "the output")
    assert target.take(b"lost")
    assert target.take(b"lost too")
    writable = os.open(tmp_path / "out", os.O_WRONLY)
    os.dup2(writable, number)
    assert target.take(b"kept")
    os.close(writable)
    os.close(number)
    assert (tmp_path / "out").read_text() == "kept"
    assert capfd.readouterr().err == "\ndesync: the output cannot be written (Bad file descriptor): some of it is lost\n"


def test_a_loss_is_not_said_where_saying_it_would_hold_up_the_job() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(write, b"x" * 65536):
            pass
    os.set_blocking(write, True)
    code = "from desync.watch.relay import say; print(say('lost'))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write, timeout=60, check=True)
    os.close(read)
    os.close(write)
    assert done.stdout == b"False\n"


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
