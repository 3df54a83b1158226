"""``python -m desync.recorder.selftest``: does the hook work with the torch of this environment?  Prints one line of JSON.

Runs one all_reduce of a single rank on torch's ``fake`` backend with the recorder installed and looks into the journal.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile


def check() -> str:
    """What was found, in words.  Raises RuntimeError with the reason if the hook does not record."""
    from desync.journal.reader import JournalReader
    from desync.recorder import imports, session

    imports.arm()
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    if session.current is None:
        raise RuntimeError("no journal was opened")
    trace = JournalReader(session.current.writer.path).trace()
    seen = [operation.call.op for operation in trace.operations.rows(0)] if trace else []
    if trace is None or "all_reduce" not in seen:
        raise RuntimeError(f"an all_reduce was not recorded; {'; '.join(trace.notes) if trace else 'empty journal'}")
    if trace.notes:
        raise RuntimeError("; ".join(trace.notes))
    return f"the hook records with torch {torch.__version__}"


def main() -> int:
    """Print the outcome; status 0 if the hook works."""
    with tempfile.TemporaryDirectory(prefix="desync-") as folder:
        os.environ["DESYNC_RUN_DIR"] = folder
        os.environ.pop("RANK", None)
        try:
            detail, fine = check(), True
        except Exception as error:  # noqa: BLE001 - any failure is the answer
            detail, fine = f"{type(error).__name__}: {error}", False
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"ok": fine, "detail": detail}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
