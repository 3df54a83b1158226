"""One dump as columns: the only place that knows the layout of a dump's dictionaries.

What comes out is plain (numbers, strings, bytes, tuples), so that it can cross from the process that read the dump to the one
that asked for it without being a program on the way.  Layouts 2.0 to 2.10 differ in which fields there are; what is missing
stays unknown.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Iterable, Sequence
from marshal import dumps
from operator import itemgetter
from typing import Any, NamedTuple

from desync.evidence.flight_recorder.names import peers
from desync.evidence.flight_recorder.restricted import TEXT, RefusedError

MAX_ENTRIES = 4_000_000
MAX_CALLS = 200_000
MAX_FRAMES = 48
MAX_TENSORS = 256
MAX_DIMS = 16
MAX_TEXT = 300
MAX_GROUPS = 65536
MAX_RANKS = 1 << 17
MAX_INT = 1 << 62

_NUMBER = re.compile(r"\d{1,9}")
_FLAT = 2
"""Version of marshal's format: the last in which equal values always give equal bytes."""

RawTensors = tuple[tuple[tuple[int, ...], ...], tuple[str, ...], int]
RawCall = tuple[str, int, RawTensors, RawTensors, int, bool, int]
"""Name, group (index), inputs, outputs, stack (index, -1: none), is it p2p, how many operations were coalesced."""
RawFrame = tuple[str, str, int]


class RawDump(NamedTuple):
    """A dump.  Columns are 64-bit integers, oldest entry first; times are epoch ns, 0 where there is none."""

    version: str
    library: str
    groups: tuple[tuple[str, str, int], ...]
    """Groups of the entries: name, description, the rank-local handle (-1: unknown)."""
    members: tuple[tuple[str, str, tuple[int, ...]], ...]
    """``pg_config``: name, description, global ranks."""
    counters: tuple[tuple[int, int, int], ...]
    """``pg_status``: handle, last enqueued, last completed (of whatever came last, p2p included)."""
    calls: tuple[RawCall, ...]
    threads: tuple[int, ...]
    """The thread of each call."""
    stacks: tuple[tuple[RawFrame, ...], ...]
    call: bytes
    seq: bytes
    entered: bytes
    completed: bytes
    counts: tuple[tuple[int, int], ...]
    """Group (index) and how many collectives it had seen at the newest p2p entry: a p2p entry carries both counters."""
    first_record: int
    skipped: int
    """Entries that could not be read."""


def _column(values: list[int]) -> bytes:
    return array("q", values).tobytes()


def _first_record(entries: list[Any]) -> int:
    """Number of the oldest entry: how many the ring has dropped before."""
    return max(0, _number(entries[0].get("record_id"))) if entries and isinstance(entries[0], dict) else 0


def from_dump(raw: Any) -> RawDump:
    """The columns of a dump.  Raises RefusedError if it is none."""
    if not isinstance(raw, dict) or not isinstance(raw.get("entries"), list):
        raise RefusedError(TEXT)
    entries = raw["entries"]
    if len(entries) > MAX_ENTRIES:
        raise RefusedError(f"it has more than {MAX_ENTRIES} entries")
    rows = _Rows()
    for entry in entries:
        rows.add(entry)
    rows.end(left_out=_has_gaps(entries))
    return RawDump(
        version=_text(raw.get("version")),
        library=_text(raw.get("comm_lib_version") or raw.get("nccl_version")),
        groups=tuple(rows.groups),
        members=tuple(_members(raw.get("pg_config"))),
        counters=tuple(_counters(raw.get("pg_status"))),
        calls=tuple(rows.calls),
        threads=tuple(rows.threads),
        stacks=tuple(rows.stacks),
        call=_column(rows.call),
        seq=_column(rows.seq),
        entered=_column(rows.entered),
        completed=_column(rows.completed),
        counts=tuple(rows.counts.items()),
        first_record=_first_record(entries),
        skipped=rows.skipped,
    )


def _has_gaps(entries: list[Any]) -> bool:
    """Whether entries between the oldest and the newest are missing, as with TORCH_INCLUDE_ONLY_ACTIVE."""
    if len(entries) < 2 or not isinstance(entries[-1], dict):
        return False
    newest = _number(entries[-1].get("record_id"), -1)
    return newest - _first_record(entries) >= len(entries)


_MOMENT = ("collective_seq_id", "p2p_seq_id", "time_created_ns", "time_discovered_completed_ns")
_PLACE = ("frames", "profiling_name", "process_group", "thread_id", *_MOMENT)
_SHAPE = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "pg_id", "is_p2p")
_place, _shape = itemgetter(*_PLACE), itemgetter(*_SHAPE)
_ABSENT = dict.fromkeys((*_PLACE, *_SHAPE))
MAX_SHAPES = 16
"""So many shapes of one call are compared one by one; with more they are looked up."""
_NO_STACK = -1


class _Rows:
    """Grows the columns of one dump."""

    def __init__(self) -> None:
        self.call: list[int] = []
        self.seq: list[int] = []
        self.entered: list[int] = []
        self.completed: list[int] = []
        self.groups: list[tuple[str, str, int]] = []
        self.stacks: list[tuple[RawFrame, ...]] = []
        self.calls: list[RawCall] = []
        self.threads: list[int] = []
        """The thread of each call: calls of different threads are different."""
        self.skipped = 0
        self.counts: dict[int, int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        self._shapes: dict[tuple[Any, ...], list[tuple[tuple[Any, ...], int]]] = {}
        self._group_numbers: dict[tuple[str, str, int], int] = {}
        self._stack_numbers: dict[tuple[RawFrame, ...], int] = {}
        self._stack_ids: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        """Row of the newest collective of each group; for ``~group`` that of the newest send or receive."""
        self._open: dict[int, list[int]] = {}
        """By the same keys: rows of the newest launch of several operations, as long as no carrier has come."""
        self._one_counter = False
        """Sends and collectives are counted together: layouts up to 2.1."""

    def add(self, entry: Any) -> None:
        """Take over one entry; one that does not fit is counted."""
        try:
            try:
                place, shape = _place(entry), _shape(entry)
            except KeyError:
                entry = {**_ABSENT, **entry}
                if entry["collective_seq_id"] is None:
                    entry["collective_seq_id"] = entry["p2p_seq_id"] = entry.get("seq_id")
                    self._one_counter = True
                place, shape = _place(entry), _shape(entry)
            self._add(entry, place, shape)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            self.skipped += 1

    def _add(self, entry: dict[str, Any], place: tuple[Any, ...], shape: tuple[Any, ...]) -> None:
        frames, name, named, thread, seq, p2p_seq, entered, completed = place
        # The frames are looked up by identity: dumps share them, and what is in use keeps its identity.
        key = (id(frames), name, named if type(named) is tuple else None, thread)
        for known in self._shapes.get(key, ()):
            if known[0] == shape:
                call = known[1]
                break
        else:
            call = self._call(key, place, shape)
        _, group, _, _, _, p2p, _ = self.calls[call]
        if not completed:
            # "retired" alone says that torch watches it no longer: an operation that timed out is that as well.
            completed = (entered or 1) if entry.get("state") == "completed" else 0
        if p2p:
            if not self._one_counter:
                self.counts[group] = _number(seq)
            seq = p2p_seq
        seq, entered = seq or 0, entered or 0
        if type(seq) is not int or type(entered) is not int or type(completed) is not int:
            raise TypeError
        if not 0 <= seq < MAX_INT or not 0 <= entered < MAX_INT or not 0 <= completed < MAX_INT:
            raise OverflowError
        lane = ~group if p2p else group
        row = self._newest.get(lane)
        together = (row is not None and self.seq[row] == seq) or lane in self._open or (p2p and name.endswith(":coalesced"))
        if together and (self._joins_batch if p2p else self._joins_launch)(lane, seq, call, completed):
            return
        self._newest[lane] = len(self.seq)
        self.call.append(call)
        self.seq.append(seq)
        self.entered.append(entered)
        self.completed.append(completed)

    # Of what is launched together torch records each member, as "scheduled" for ever, and behind them a carrier that has the
    # same number and the real state.  Dumps with TORCH_INCLUDE_ONLY_ACTIVE lack the carriers that have finished.

    def _joins_batch(self, lane: int, seq: int, call: int, completed: int) -> bool:
        """Whether a p2p entry is the carrier of a batch: then it gives the batch's rows its completion, and is no row."""
        row, carrier = self._newest.get(lane), self.calls[call][0].endswith(":coalesced")
        if row is None or self.seq[row] != seq:
            self._finish(self._open.pop(lane, ()))
        elif carrier:
            for each in self._open.pop(lane, (row,)):
                self.completed[each] = completed
        else:
            self._open.setdefault(lane, [row]).append(len(self.seq))
        return carrier

    def _joins_launch(self, lane: int, seq: int, call: int, completed: int) -> bool:
        """Whether a collective belongs to a launch that has a row."""
        row = self._newest[lane]
        if self.seq[row] != seq:
            self._finish(self._open.pop(lane, ()))
            return False
        self._coalesced(row, call)
        if self.calls[call][0].endswith("coalesced"):
            self.completed[row] = completed
            self._open.pop(lane, None)
        elif self.completed[row] or completed:  # here members do have a state of their own
            self.completed[row] = min(self.completed[row], completed)
            self._open.pop(lane, None)
        else:
            self._open[lane] = [row]
        return True

    def _finish(self, rows: Sequence[int]) -> None:
        """The carrier of these rows is not there although later ones of the group are: it was left out, being over."""
        for row in rows:
            self.completed[row] = self.completed[row] or self.entered[row] or 1

    def end(self, *, left_out: bool) -> None:
        """All entries have come; ``left_out`` says that those that are over may be missing."""
        newest = {self.threads[call]: row for row, call in enumerate(self.call)} if self._open else {}
        for rows in self._open.values():
            if left_out or newest[self.threads[self.call[rows[-1]]]] > rows[-1]:
                self._finish(rows)

    def _coalesced(self, row: int, call: int) -> None:
        """Operations of one coalesced launch share their number: they become one row."""
        first = self.calls[self.call[row]]
        key = ("coalesced", self.call[row], call)
        if key not in self._known:
            if len(self.calls) >= MAX_CALLS:
                raise ValueError("too many different calls")
            self._known[key] = len(self.calls)
            self.calls.append((*first[:6], first[6] + 1))
            self.threads.append(self.threads[self.call[row]])
        self.call[row] = self._known[key]

    def _call(self, key: tuple[Any, ...], place: tuple[Any, ...], shape: tuple[Any, ...]) -> int:
        """The number of a call that was not found at once: known by its content, or new."""
        frames, name, named, thread, *_ = place
        stack = self._stack(frames) if frames else _NO_STACK
        content = (stack, dumps((name, named, thread, *shape), _FLAT))
        found = self._known.get(content)
        if found is None:
            found = self._known[content] = self._new_call(name, named, thread, shape, stack)
        # Only what is written as torch does it may be found at once: with another group's name equal shapes mean little.
        if type(named) is tuple:
            shapes = self._shapes.setdefault(key, [])
            if len(shapes) < MAX_SHAPES:
                shapes.append((shape, found))
        return found

    def _new_call(self, name: Any, named: Any, thread: Any, shape: tuple[Any, ...], stack: int) -> int:
        input_sizes, output_sizes, input_dtypes, output_dtypes, handle, p2p = shape
        if len(self.calls) >= MAX_CALLS:
            raise ValueError("too many different calls")
        if not isinstance(name, str):
            raise TypeError("an operation without a name")
        if p2p is None:  # layouts without this field
            p2p = peers(name.rpartition(":")[2]) is not None
        group = self._group(named, handle)
        inputs, outputs = _tensors(input_sizes, input_dtypes), _tensors(output_sizes, output_dtypes)
        self.calls.append((name[:MAX_TEXT], group, inputs, outputs, stack, bool(p2p), 1))
        self.threads.append(_number(thread))
        return len(self.calls) - 1

    def _group(self, named: Any, handle: Any) -> int:
        number = handle if isinstance(handle, int) else -1
        if isinstance(named, (list, tuple)) and len(named) == 2:
            group = (_text(named[0]), _text(named[1]), number)
        else:
            group = ("", "", number)
        if group not in self._group_numbers:
            if len(self.groups) >= MAX_GROUPS:
                raise ValueError("too many groups")
            self._group_numbers[group] = len(self.groups)
            self.groups.append(group)
        return self._group_numbers[group]

    def _stack(self, frames: Any) -> int:
        if not isinstance(frames, list):
            return _NO_STACK
        known = self._stack_ids.get(id(frames))
        if known is not None:
            return known
        found = tuple(
            (_text(frame["name"]), _text(frame["filename"], 1000), int(frame["line"])) for frame in frames[:MAX_FRAMES]
        )
        number = self._stack_numbers.setdefault(found, len(self.stacks))
        if number == len(self.stacks):
            self.stacks.append(found)
        self._stack_ids[id(frames)] = number
        return number


def _tensors(sizes: Any, dtypes: Any) -> RawTensors:
    shapes = tuple(
        tuple(int(size) for size in shape[:MAX_DIMS])
        for shape in (sizes or ())[:MAX_TENSORS]
        if isinstance(shape, (list, tuple))
    )
    names = tuple(_text(name) for name in (dtypes or ())[:MAX_TENSORS])
    return shapes, names, max(0, len(sizes or ()) - MAX_TENSORS)


def _members(config: Any) -> Iterable[tuple[str, str, tuple[int, ...]]]:
    if not isinstance(config, dict):
        return
    for key, group in list(config.items())[:MAX_GROUPS]:
        if isinstance(group, dict):
            name = group.get("name")
            yield (
                _text(name if isinstance(name, str) else str(key)[:MAX_TEXT]),
                _text(group.get("desc")),
                _ranks(group.get("ranks")),
            )


def _ranks(value: Any) -> tuple[int, ...]:
    """Members of a group, which are text in most layouts: "[0, 1]"."""
    if isinstance(value, str):
        found = [int(number[0]) for number in _NUMBER.finditer(value[: MAX_RANKS * 10])]
    else:
        found = [rank for rank in value[:MAX_RANKS] if isinstance(rank, int)] if isinstance(value, (list, tuple)) else []
    return tuple(rank for rank in found[:MAX_RANKS] if 0 <= rank < MAX_RANKS)


def _counters(status: Any) -> Iterable[tuple[int, int, int]]:
    if not isinstance(status, dict):
        return
    for handle, counters in list(status.items())[:MAX_GROUPS]:
        if isinstance(counters, dict):
            with contextlib.suppress(ValueError, TypeError):
                yield (
                    int(handle),
                    _number(counters.get("last_enqueued_collective"), -1),
                    _number(counters.get("last_completed_collective"), -1),
                )


def _number(value: Any, unknown: int = 0) -> int:
    if isinstance(value, str) and len(value) < 20:
        with contextlib.suppress(ValueError):
            value = int(value)
    return value if isinstance(value, int) and -1 <= value < MAX_INT else unknown


def _text(value: Any, limit: int = MAX_TEXT) -> str:
    return value[:limit] if isinstance(value, str) else ""
