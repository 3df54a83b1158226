"""The words of desync as data: what is known of a job, whatever source it came from.

Everything here is frozen and does no I/O.  Sources (journals, flight-recorder dumps, logs) are turned into :class:`Evidence`;
the diagnosis turns evidence into a :class:`Diagnosis`; the report renders it.  What is unknown is ``None`` or an explicit enum
member, never a sentinel number.

Times are nanoseconds since the Unix epoch.  Ranks are global ranks unless a name says otherwise.
"""

from desync.model.calls import (
    Call,
    CallSite,
    Frame,
    Group,
    Operation,
    OperationTable,
    Tensors,
)
from desync.model.evidence import (
    Activity,
    Claim,
    Evidence,
    Job,
    KernelKills,
    RankStacks,
    Stack,
)
from desync.model.findings import (
    AtDivergence,
    Diagnosis,
    Divergence,
    Finding,
)
from desync.model.told import as_it_stood, without_failures
from desync.model.traces import (
    DdpModule,
    Exit,
    Failure,
    Mark,
    Progress,
    Sampler,
    Trace,
)
from desync.model.words import (
    Cause,
    Certainty,
    ClaimKind,
    Kind,
    MarkKind,
    Motion,
    OperationState,
    RankState,
    Status,
)

__all__ = [
    "Activity",
    "AtDivergence",
    "Call",
    "CallSite",
    "Cause",
    "Certainty",
    "Claim",
    "ClaimKind",
    "DdpModule",
    "Diagnosis",
    "Divergence",
    "Evidence",
    "Exit",
    "Failure",
    "Finding",
    "Frame",
    "Group",
    "Job",
    "KernelKills",
    "Kind",
    "Mark",
    "MarkKind",
    "Motion",
    "Operation",
    "OperationState",
    "OperationTable",
    "Progress",
    "RankStacks",
    "RankState",
    "Sampler",
    "Stack",
    "Status",
    "Tensors",
    "Trace",
    "as_it_stood",
    "without_failures",
]
