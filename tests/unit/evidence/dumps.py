"""Flight-recorder dumps as torch writes them (layout 2.10), made in memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any


def entry(op: str, seq: int, *, group: str = "0", done: bool = True, record: int = 0, **more: Any) -> dict[str, Any]:
    p2p = op.startswith(("send", "recv"))
    frames = [
        {"name": "all_reduce", "filename": "/env/site-packages/torch/distributed/distributed_c10d.py", "line": 3000},
        {"name": "step", "filename": "/job/train.py", "line": more.pop("line", 10)},
    ]
    return {
        "frames": frames,
        "record_id": record,
        "pg_id": more.pop("handle", int(group)),
        "process_group": (group, more.pop("desc", "default_pg" if group == "0" else "undefined")),
        "thread_name": "python3",
        "thread_id": "1395",
        "collective_seq_id": 0 if p2p else seq,
        "p2p_seq_id": seq if p2p else 0,
        "op_id": seq,
        "profiling_name": f"{more.pop('backend', 'nccl')}:{op}",
        "time_created_ns": 1_790_000_000_000_000_000 + record * 1_000_000,
        "input_sizes": [[more.pop("size", 8)]],
        "input_dtypes": [more.pop("dtype", "Float")],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 1_790_000_000_000_500_000 + record * 1_000_000 if done else None,
        "retired": done,
        "timeout_ms": 600000,
        "is_p2p": p2p,
        **more,
    }


def dump(entries: list[dict[str, Any]], world: int = 4, **more: Any) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    groups |= {
        name: {"name": name, "desc": f"GROUP_{name}", "ranks": str(ranks)} for name, ranks in more.pop("groups", {}).items()
    }
    return {"version": "2.10", "pg_config": groups, "comm_lib_version": "2.27.5", "pg_status": {}, "entries": entries, **more}


def write(folder: Path, dumps: dict[int, dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, content in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def steps(count: int, *, first: int = 1, group: str = "0", record: int = 0, **more: Any) -> list[dict[str, Any]]:
    """So many finished all_reduces."""
    return [entry("all_reduce", first + each, group=group, record=record + each, **more) for each in range(count)]
