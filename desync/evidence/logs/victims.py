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
_TYPES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "KeyboardInterrupt"})


def is_no_error(kind: str, message: str) -> bool:
    """Whether what was raised is the ordinary end of a program."""
    return kind == "SystemExit" and message.strip() in ("", "0", "None")


def is_misuse(message: str) -> bool:
    """Whether NCCL refuses what its caller asks for: no peer and no network is at fault then."""
    return "ncclInvalidUsage" in message or "ncclInvalidArgument" in message


def is_victim(kind: str, message: str) -> bool:
    """Whether an exception says that a peer, the network or a time-out was at fault, or whoever pressed Ctrl-C."""
    if any(device in message.lower() for device in ("cuda error", "hip error")) or is_misuse(message):
        return False
    return kind.rpartition(".")[2] in _TYPES or any(word in message for word in _WORDS)
