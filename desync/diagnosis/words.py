"""Small phrases that every finding is made of."""

from __future__ import annotations

from collections.abc import Iterable

from desync.model import Call, CallSite, Failure, Operation

MAX_MESSAGE = 200


def ranges(ranks: Iterable[int]) -> str:
    """``0-2,4-63``: ranks, compressed."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for index in range(len(ordered)):
        if index + 1 == len(ordered) or ordered[index + 1] != ordered[index] + 1:
            first, last = ordered[start], ordered[index]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = index + 1
    return ",".join(parts)


def named(ranks: Iterable[int]) -> str:
    """Such as "rank 2" or "ranks 0,1,3"."""
    members = set(ranks)
    return f"rank{'' if len(members) == 1 else 's'} {ranges(members)}"


def capital(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def verb(ranks: Iterable[int], one: str, many: str) -> str:
    """The form of a verb for so many ranks."""
    return one if len(set(ranks)) == 1 else many


def of_several(what: str) -> str:
    """What is said of one rank, said of several."""
    done = ("had done its work and was ended", "had done their work and were ended")
    for one, many in (("is ", "are "), ("has ", "have "), ("was ", "were "), done):
        if what.startswith(one):
            return many + what.removeprefix(one)
    return what


def counted(number: int, noun: str) -> str:
    """Such as "1 batch", "2 batches"."""
    plural = noun + ("es" if noun.endswith(("ch", "s", "sh")) else "s")
    return f"{number} {noun if number == 1 else plural}"


def place(site: CallSite | None) -> str:
    """Such as "train.py:42 in main", or that it is not known."""
    if site is None:
        return "a line that was not recorded"
    frame = site.innermost
    return f"{frame.file.rpartition('/')[2]}:{frame.line} in {frame.function.rpartition('.')[2]}"


def apart(site: CallSite | None, other: CallSite | None) -> str:
    """The same with the caller's line, where another call comes from the same line of a helper."""
    if site is None or other is None or site.innermost != other.innermost:
        return place(site)
    caller = next((mine for mine, theirs in zip(site.frames, other.frames, strict=False) if mine != theirs), None)
    return place(site) if caller is None else f"{place(site)} (from {caller.file.rpartition('/')[2]}:{caller.line})"


def called(operation: Operation) -> str:
    """An operation with what tells it apart: "all_reduce #17 (DDP bucket 0: fc.weight)"."""
    return f"{operation.call.op} #{operation.seq}{detail(operation.call)}"


def detail(call: Call) -> str:
    """What a call works on, in brackets; empty if there is nothing to say."""
    if call.bucket:
        return f" ({call.bucket})"
    shapes = call.inputs.shapes or call.outputs.shapes
    if not shapes:
        return ""
    dtype = call.inputs.dtype or call.outputs.dtype or ""
    return f" ({dtype}{list(shapes[0])}{', …' if len(shapes) > 1 else ''})"


def raised(failure: Failure) -> str:
    """Such as "ValueError: message", the message's first line, cut, without the full stop that ends it."""
    lines = failure.message.strip().splitlines()
    message = lines[0] if lines else ""
    if message.endswith(".") and not message.endswith(".."):
        message = message[:-1]
    if len(message) > MAX_MESSAGE:
        message = message[: MAX_MESSAGE - 1] + "…"
    kind = failure.type.rpartition(".")[2]
    return f"{kind}: {message}" if message else kind


def closed(text: str) -> str:
    """A text that ends a sentence, with the full stop that it may have already."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def seconds(nanoseconds: int) -> str:
    """Such as "12.3 s"."""
    return f"{nanoseconds / 1e9:.1f} s"
