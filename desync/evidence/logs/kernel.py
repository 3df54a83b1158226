"""What the kernel of a machine says about its devices."""

from __future__ import annotations

from desync.evidence.logs import patterns as p
from desync.evidence.logs.facts import Facts, GpuFault
from desync.evidence.logs.speakers import Line

MAX_GPU_FAULTS = 1000
MAX_HEAD = 300


def gpu_fault(line: Line, facts: Facts) -> bool:
    """The kernel's line about a GPU; the same one is written once for each channel that it met."""
    place = line.text.find(p.GPU_FAULT_WORD)
    found = p.GPU_FAULT.match(line.text, place) if 0 <= place <= MAX_HEAD else None
    head = p.KERNEL_HEAD.search(line.text[:place]) if found is not None else None
    if found is None or head is None or len(facts.gpu_faults) >= MAX_GPU_FAULTS:
        return False
    pid = int(found["pid"]) if found["pid"] is not None else None
    facts.gpu_faults[GpuFault(int(found["code"]), found["bus"], pid, head[1])] = None
    return True
