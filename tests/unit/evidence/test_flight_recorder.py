from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from desync.diagnosis.claims import interpret
from desync.errors import EvidenceError
from desync.evidence.flight_recorder import names
from desync.evidence.flight_recorder.columns import from_dump
from desync.evidence.flight_recorder.merge import merge
from desync.evidence.flight_recorder.pool import Unread, Wanted, read_all
from desync.evidence.flight_recorder.restricted import RefusedError, loads
from desync.evidence.mixture import gather
from desync.evidence.sources import find
from desync.model import Cause, Certainty, Evidence, Job, Kind, Status

from . import dumps as made

DATA = Path(__file__).resolve().parents[2] / "data"


def evidence_of(dumps: dict[int, Any]) -> Evidence:
    merged = merge({rank: from_dump(raw) for rank, raw in dumps.items()})
    return Evidence(job=Job(world_size=merged.world_size), traces=merged.traces, notes=merged.notes)


def waiting(ranks: list[int], last: int = 5) -> dict[int, Any]:
    """Ranks that wait in operation `last`, with all before it done."""
    return {rank: made.dump([*made.steps(last - 1), made.entry("all_reduce", last, done=False, record=last)]) for rank in ranks}


def test_real_dumps_of_gloo_name_the_rank_that_left_an_operation_out() -> None:
    truth = json.loads((DATA / "fr/gloo_missing_rank2.truth.json").read_text())
    evidence = gather(find([str(DATA / "fr/gloo_missing_rank2")]))
    assert evidence.job.world_size == 3
    assert evidence.job.backends == ("gloo",)
    finding = interpret(evidence).findings[0]
    assert (finding.status.value, list(finding.culprit_ranks)) == ("hang", truth["culprit_ranks"])
    assert finding.cause.value in truth["cause"]
    assert finding.divergence is not None
    assert (finding.divergence.op, finding.divergence.seq) == (truth["op"], truth["seq"])
    waits = finding.divergence.by_rank[0].operation
    assert waits is not None
    assert waits.call.site is not None
    assert waits.call.site.innermost.file == "/job/fr.py"


def test_a_rank_with_nothing_under_way_is_the_one_that_all_wait_for() -> None:
    dumps = waiting([0, 1, 3])
    dumps[2] = made.dump(made.steps(4))
    finding = interpret(evidence_of(dumps)).findings[0]
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.STALLED_RANK, (2,), Certainty.LIKELY)
    assert finding.divergence is not None
    assert finding.divergence.seq == 5


def test_a_missing_dump_is_awaited_but_proves_nothing() -> None:
    finding = interpret(evidence_of(waiting([0, 1, 3]))).findings[0]
    assert (finding.cause, finding.culprit_ranks, finding.certainty) == (Cause.UNKNOWN, (2,), Certainty.POSSIBLE)


def test_all_in_one_operation_blames_nobody() -> None:
    finding = interpret(evidence_of(waiting([0, 1, 2, 3]))).findings[0]
    assert (finding.cause, finding.culprit_ranks) == (Cause.COMMUNICATION_STALLED, ())


def test_a_device_that_stands_is_told_from_a_host_that_does() -> None:
    ahead = [*made.steps(5), made.entry("all_reduce", 6, done=False, record=6)]
    behind = [*made.steps(3), *(made.entry("all_reduce", seq, done=False, record=seq) for seq in (4, 5, 6))]
    finding = interpret(
        evidence_of({0: made.dump(ahead), 1: made.dump(ahead), 2: made.dump(behind), 3: made.dump(ahead)})
    ).findings[0]
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (2,))
    assert "finished nothing since" in finding.summary


def test_everything_finished_is_healthy() -> None:
    diagnosis = interpret(evidence_of({rank: made.dump(made.steps(9)) for rank in range(4)}))
    assert (diagnosis.status, diagnosis.findings) == (Status.HEALTHY, ())


def test_an_empty_dump_gets_its_groups_from_the_order_of_names_and_handles() -> None:
    # Group 7 has handle 3 on every rank; rank 2's dump has counters only.
    groups = {"7": [0, 1, 2, 3]}
    tail = [made.entry("all_reduce", 41, group="7", handle=3, desc="GROUP_7", done=False, record=9)]
    dumps = {rank: made.dump(tail, groups=groups) for rank in (0, 1, 3)}
    counters = {
        "0": {"last_enqueued_collective": 12, "last_started_collective": -1, "last_completed_collective": 12},
        "3": {"last_enqueued_collective": 40, "last_started_collective": -1, "last_completed_collective": 40},
    }
    dumps[2] = made.dump([], groups=groups, pg_status=counters)
    finding = interpret(evidence_of(dumps)).findings[0]
    assert finding.culprit_ranks == (2,)
    assert finding.divergence is not None
    assert (finding.divergence.group.description, finding.divergence.seq) == ("GROUP_7", 41)
    last = finding.divergence.by_rank[2].operation
    assert last is not None
    assert last.seq == 40


def test_counters_of_groups_with_p2p_accuse_nobody() -> None:
    counters = {"0": {"last_enqueued_collective": 3, "last_started_collective": -1, "last_completed_collective": 3}}
    dumps = {rank: made.dump([made.entry("all_reduce", 900, record=1), made.entry("send 0->1", 5, record=2)]) for rank in (0,)}
    dumps[1] = made.dump([made.entry("all_reduce", 900), made.entry("recv 1<-0", 5, record=2)])
    dumps[2] = made.dump([], pg_status=counters)
    dumps[3] = made.dump([made.entry("all_reduce", 900)])
    trace = evidence_of(dumps).trace(2)
    assert trace is not None
    assert len(trace.operations) == 0


def test_p2p_is_numbered_alike_on_both_sides_wherever_the_rings_begin() -> None:
    sends = [made.entry("send 0->1", seq, record=seq) for seq in range(40, 50)]
    recvs = [made.entry("recv 1<-0", seq, record=seq) for seq in range(87, 90)]
    stuck = [made.entry("recv 1<-0", 90, done=False, record=90)]
    evidence = evidence_of({0: made.dump(sends, world=2), 1: made.dump([*recvs, *stuck], world=2)})
    sender, receiver = (list(trace.operations.rows(trace.rank)) for trace in evidence.traces)
    assert sender[-1].seq == receiver[-2].seq
    assert receiver[-1].seq == sender[-1].seq + 1
    assert (sender[0].call.kind, sender[0].call.peer, receiver[0].call.peer) == (Kind.P2P, 1, 0)


def test_a_send_left_out_is_found_by_the_habits_of_its_rank() -> None:
    def step(rank: int, base: int, sends: bool = True) -> list[dict[str, Any]]:
        ops = [
            made.entry("all_reduce", 2 * base + each, group="3", desc="PAIR", record=base * 9 + each, line=each)
            for each in (1, 2)
        ]
        p2p = "send 0->1" if rank == 0 else "recv 1<-0"
        return [*ops, *([made.entry(p2p, base, record=base * 9 + 5)] if sends else [])]

    groups = {"3": [0, 1]}
    dumps = {}
    for rank in (0, 1):
        entries = [each for base in range(1, 60) for each in step(rank, base)]
        entries += step(rank, 60, sends=rank == 1)
        if rank == 0:
            entries += [{**each, **OPEN} for each in step(0, 61)[:1]]
        else:
            entries[-1] = {**entries[-1], **OPEN}
        dumps[rank] = made.dump(entries, world=2, groups=groups)
    finding = interpret(evidence_of(dumps)).findings[0]
    assert finding.culprit_ranks == (0,)
    assert finding.divergence is not None
    assert finding.divergence.op == "send"


OPEN = {"state": "scheduled", "time_discovered_completed_ns": None, "retired": False}


def test_coalesced_operations_become_one_row() -> None:
    entries = [
        made.entry("all_gather", 7, size=4),
        made.entry("all_gather", 7, size=5, done=False),
        made.entry("all_reduce", 8),
    ]
    rows = list(evidence_of({0: made.dump(entries)}).traces[0].operations.rows(0))
    assert [(row.seq, row.call.op, row.pending) for row in rows] == [
        (7, "all_gather_coalesced", True),
        (8, "all_reduce", False),
    ]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.3", "2.5", "2.10"])
def test_older_layouts_are_read_as_far_as_they_go(version: str) -> None:
    full = made.entry("_all_gather_base", 3, dtype="BFloat16")
    older = {key: full[key] for key in ("frames", "pg_id", "profiling_name", "input_sizes", "output_sizes", "state")}
    older |= (
        {"seq_id": 3, "time_created_ns": 5}
        if version == "2.0"
        else {"collective_seq_id": 3, "process_group": ("0", "default_pg")}
    )
    trace = evidence_of({0: made.dump([older], version=version)}).traces[0]
    row = trace.operations.row(0, 0)
    assert (row.call.op, row.seq, row.pending) == ("all_gather_into_tensor", 3, False)


def test_entries_that_do_not_fit_are_counted() -> None:
    broken = [
        {**made.entry("all_reduce", 2), "collective_seq_id": 1.5},
        "rubbish",
        {**made.entry("all_reduce", 3), "profiling_name": 7},
    ]
    trace = evidence_of({0: made.dump([made.entry("all_reduce", 1), *broken])}).traces[0]
    assert len(trace.operations) == 1
    assert trace.notes == ("3 entries of its dump could not be read",)


def test_names_become_desyncs_words() -> None:
    assert names.operation("nccl:_reduce_scatter_base") == ("reduce_scatter_tensor", "nccl")
    assert names.operation("xccl:allreduce") == ("all_reduce", "xccl")
    assert names.public("_ALLGATHER_BASE") == "all_gather_into_tensor"
    assert (names.dtype("BFloat16"), names.dtype("Long")) == ("bfloat16", "int64")
    assert names.peers("recv 3<-12") == ("recv", 3, 12)


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return (exec, ("raise SystemExit('ran')",))


def hash_bomb() -> bytes:
    """A tuple of tuples of tuples …, each twice the one before, as a key: hashing it takes longer than the universe is old."""
    data = b"\x80\x02}(K\x00"
    data += b"".join(b"q" + bytes([index % 256]) + b"h" + bytes([index % 256]) + b"\x86" for index in range(60))
    return data + b"K\x01u."


def memo_bomb() -> bytes:
    return b"\x80\x02Nr" + struct.pack("<I", 0xFFFFFFF0) + b"."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Evil(), protocol=2), "asks for the Python object"),
        (pickle.dumps(made.dump(made.steps(3)), protocol=2)[:-20], "ends in the middle"),
        (b'{"entries": [1, 2', "no complete JSON"),
        (pickle.dumps([1, 2, 3], protocol=2), "no flight-recorder dump"),
        (b"\x80\x02" + bytes(range(200)), "dump"),
        (memo_bomb(), "more memory than a dump of its size"),
        (hash_bomb(), "more time or memory"),
    ],
)
def test_hostile_dumps_are_refused_by_name_and_in_time(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "dump_0").write_bytes(content)
    began = time.monotonic()
    with pytest.raises(EvidenceError) as caught:
        gather(find([str(tmp_path)]))
    assert words in caught.value.message
    assert "dump_0" in caught.value.message
    assert time.monotonic() - began < 120  # not speed: a hash that never ends must have been stopped


def test_one_hostile_dump_does_not_cost_the_others(tmp_path: Path) -> None:
    folder = made.write(tmp_path, waiting([0, 1, 3]))
    (folder / "nccl_trace_rank_2").write_bytes(pickle.dumps(Evil(), protocol=2))
    evidence = gather(find([str(folder)]))
    assert [trace.rank for trace in evidence.traces] == [0, 1, 3]
    assert any("nccl_trace_rank_2" in note and "asks for" in note for note in evidence.notes)


def test_the_unpickler_refuses_every_way_to_reach_an_object() -> None:
    for opcode in (b"cos\nsystem\n", b"\x8c\x02os\x8c\x06system\x93", b"ios\nsystem\n", b"Pid\n", b"N\x51"):
        with pytest.raises(RefusedError):
            loads(b"\x80\x04" + opcode + b".")


def test_files_in_archives_and_compressed_are_read(tmp_path: Path) -> None:
    source = made.write(tmp_path / "plain", {**waiting([0, 1, 3]), 2: made.dump(made.steps(4))})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(source.iterdir()):
            archive.add(path, f"cluster/{path.name}")
    (tmp_path / "all.tgz").write_bytes(packed.getvalue())
    zipped = tmp_path / "zipped"
    zipped.mkdir()
    for path in source.iterdir():
        (zipped / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    for place in (tmp_path / "all.tgz", zipped, tmp_path / "plain" / "nccl_trace_rank_?"):
        finding = interpret(gather(find([str(place)]))).findings[0]
        assert finding.culprit_ranks == (2,), place


def test_json_dumps_are_read_like_pickles(tmp_path: Path) -> None:
    for rank, content in {**waiting([0, 1, 3]), 2: made.dump(made.steps(4))}.items():
        for each in content["entries"]:
            each.pop("frames")
            each["time_discovered_completed_ns"] = each["time_discovered_completed_ns"] or 0
        (tmp_path / f"trace_rank_{rank}.json").write_text(json.dumps(content))
    assert interpret(gather(find([str(tmp_path)]))).findings[0].culprit_ranks == (2,)


def test_a_dump_whose_name_has_no_rank_is_passed_over_with_a_note(tmp_path: Path) -> None:
    folder = made.write(tmp_path, waiting([0, 1]))
    (folder / "copy").write_bytes((folder / "nccl_trace_rank_0").read_bytes())
    assert any("does not tell the rank" in note for note in gather(find([str(folder)])).notes)


def test_a_worker_that_dies_is_replaced() -> None:
    sound = pickle.dumps(made.dump(made.steps(2)), protocol=2)
    read = read_all([Wanted(None, lambda: hash_bomb()), Wanted(None, lambda: sound), Wanted(Path("/does/not/exist"))])
    assert isinstance(read[0], Unread)
    assert not isinstance(read[1], Unread)
    assert isinstance(read[2], Unread)
    assert "No such file" in read[2].reason


def test_notes_say_which_switch_would_have_shown_more() -> None:
    whole = {rank: made.dump([*made.steps(300), made.entry("all_reduce", 301, done=False)]) for rank in range(4)}
    notes = merge({rank: from_dump(raw) for rank, raw in whole.items()}).notes
    assert len(notes) == 1  # what no dump holds
    missing = merge({rank: from_dump(raw) for rank, raw in whole.items() if rank != 2}).notes
    assert any("no dump of 1 rank;" in note and "TORCH_FR_DUMP_TEMP_FILE" in note for note in missing)
    active = merge({0: from_dump(made.dump([made.entry("all_reduce", 301, done=False)], world=1))}).notes
    assert any("TORCH_INCLUDE_ONLY_ACTIVE" in note for note in active)
    short = merge({0: from_dump(made.dump(made.steps(9, first=300, record=300), world=1))}).notes
    assert any("a larger TORCH_FR_BUFFER_SIZE" in note for note in short)
    gloo = merge({0: from_dump(made.dump([made.entry("all_reduce", 1, backend="gloo", done=False)], world=1))}).notes
    assert any("gloo's recorder does not tell" in note for note in gloo)
