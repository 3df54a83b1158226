"""A launcher and its ranks, without torch: each rank writes the journal that a real one would have.

``players.py PLAY`` starts two ranks in sessions of their own, as torchrun does, and waits for them; PLAY says what they do.
A play that waits for its cue goes on when the file named by PLAYERS_CUE appears.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from desync.journal.layout import Flag, RecordType
from desync.journal.writer import JournalWriter

WORLD = 2


class Rank:
    def __init__(self, rank: int, attempt: int) -> None:
        self.rank = rank
        name = f"a{attempt}.{socket.gethostname()}.{os.getpid()}.journal"
        path = os.path.join(os.environ["DESYNC_RUN_DIR"], "journals", name)
        self.writer = JournalWriter(path, attempt=attempt, slots=256, heap_bytes=1 << 16)
        self.writer.intern("info", {"torch": "2.13.0"}, key="info")
        self.group = self.writer.intern("group", {"name": "0", "ranks": list(range(WORLD)), "backend": "gloo"}, key="0")
        self.writer.identify(rank, WORLD)
        self.seq = 0

    def enter(self, op: str) -> int:
        """Enter the next operation; returns its record."""
        self.seq += 1
        tensors = [[[4]], ["float32"], 0]
        call = self.writer.intern("call", {"op": op, "kind": "collective", "in": tensors, "out": tensors}, key=op)
        line = 40 + (op == "broadcast")
        site = self.writer.intern("site", [["main", "/users/train.py", line]], key=line)
        kind = RecordType.OPERATION | Flag.COMPLETION_KNOWN
        return self.writer.operation(kind, self.group, self.seq, call, site, 0, 0, os.getpid(), 0, time.monotonic_ns())

    def step(self, count: int) -> None:
        """Operations that all ranks do."""
        for _ in range(count):
            record = self.enter("all_reduce")
            self.writer.completed(record)
            self.writer.left(record)

    def end(self, code: int = 0) -> None:
        self.writer.exiting(code)
        sys.exit(code)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


def wait_for_cue() -> None:
    wait_for(Path(os.environ["PLAYERS_CUE"]))


def in_run(name: str) -> Path:
    return Path(os.environ["DESYNC_RUN_DIR"], name)


def agree(me: Rank) -> None:
    me.step(5)


def other_operation(me: Rank) -> None:
    me.step(2)
    me.enter("all_reduce" if me.rank == 0 else "broadcast")
    time.sleep(600)


def late(me: Rank) -> None:
    """Rank 1 comes to the third operation only at the cue."""
    me.step(2)
    if me.rank == 1:
        wait_for_cue()
    record = me.enter("all_reduce")
    if me.rank == 0:
        wait_for_cue()
    me.writer.completed(record)
    me.step(1)


def busy(me: Rank) -> None:
    """Rank 1 works on for ever, and rank 0 waits for it."""
    me.step(2)
    while me.rank == 1:
        sum(range(10_000))
    me.enter("all_reduce")
    time.sleep(600)


def killed(me: Rank) -> None:
    me.step(2)
    if me.rank == 1:
        wait_for(in_run("rank 0 waits"))
        os.kill(os.getpid(), signal.SIGKILL)
    me.enter("all_reduce")
    in_run("rank 0 waits").touch()
    time.sleep(600)


def killed_early(me: Rank) -> None:
    """Rank 1 is gone, and reported, before rank 0 has come so far that anybody can know it (see main)."""
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    me.enter("all_reduce")
    time.sleep(600)


def restarted(me: Rank) -> None:
    """In the first attempt rank 1 ends in the middle; the second is well."""
    if "attempt-1" in sys.argv:
        me.step(3)
        return
    me.step(2)
    if me.rank == 1:
        wait_for(in_run("rank 0 waits"))
        me.end(9)
    me.enter("all_reduce")
    in_run("rank 0 waits").touch()
    time.sleep(600)


def lingers(me: Rank) -> None:
    """Rank 1 comes to the end of its program, and one of its threads does not."""
    me.step(3)
    if me.rank == 1:
        me.writer.main_over()
        time.sleep(600)


def stopped(me: Rank) -> None:
    """Both are in the third operation, and one of them is stopped there."""
    me.step(2)
    me.enter("all_reduce")
    if me.rank == 1:
        wait_for(in_run("rank 0 waits"))
        os.kill(os.getpid(), signal.SIGSTOP)
    in_run("rank 0 waits").touch()
    time.sleep(600)


PLAYS = {
    play.__name__: play for play in (agree, other_operation, late, busy, killed, killed_early, lingers, stopped, restarted)
}


def launch(play: str, *more: str) -> int:
    command = [sys.executable, __file__, play]
    ranks = [subprocess.Popen([*command, str(rank), *more], start_new_session=True) for rank in range(WORLD)]
    patient = play in ("late", "agree", "lingers")
    while all(rank.poll() is None for rank in ranks) or (patient and None in [r.poll() for r in ranks]):
        time.sleep(0.02)
    if play.startswith("killed"):
        time.sleep(600)  # a launcher that does not notice
    if any(rank.poll() for rank in ranks):
        for rank in ranks:
            rank.kill()
    return max(abs(rank.wait()) for rank in ranks)


def main() -> int:
    play = sys.argv[1]
    if len(sys.argv) > 2:
        if play == "killed_early" and sys.argv[2] == "0":
            wait_for(in_run("report.json"))
        me = Rank(int(sys.argv[2]), attempt=int("attempt-1" in sys.argv))
        PLAYS[play](me)
        me.end()
    print(f"launched {play}", flush=True)
    status = launch(play)
    if play == "restarted":
        status = launch(play, "attempt-1")
    print("launcher ends", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
