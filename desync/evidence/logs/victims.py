"""Words of errors that come over a rank because of others."""

from __future__ import annotations

_WORDS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "gloo/transport",
    "Timed out",
    "timed out",
    "caught collective operation timeout",
    "Caught collective operation timeout",
    "NCCL communicator was aborted",
    "remote process exited or there was a network error",
    "monitoredBarrier",
    "store based barrier",
    "Socket Timeout",
    "Socket closed",
    "wait timeout after",
)
_TYPES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})


def is_victim(kind: str, message: str) -> bool:
    """Whether an exception says that a peer, the network or a time-out was at fault."""
    if "cuda error" in message.lower():
        return False
    return kind.rpartition(".")[2] in _TYPES or any(word in message for word in _WORDS)
