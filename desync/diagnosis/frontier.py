"""Where the ranks of each group part: the first operation that they do not do together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from desync.diagnosis.align import Tokens, parted_before
from desync.diagnosis.board import Board, GroupBoard, Lane, first_difference
from desync.model import AtDivergence, Call, Divergence, Group, Operation, OperationState


@dataclass(frozen=True, slots=True)
class Parting:
    """The ranks of one group at the first operation at which they part.

    ``clusters`` are the ranks that entered it, by what they called there, the largest first; more than one is a mismatch.
    ``absent`` have not come that far.  A parting without mismatch and with nobody pending is no fault: nobody waits.
    """

    board: GroupBoard
    seq: int
    clusters: tuple[tuple[int, ...], ...]
    absent: tuple[int, ...]
    pending: tuple[int, ...]
    """Those of the ranks that came whose operation is not known to be over."""
    failed: tuple[int, ...]
    """Those for which it ended with an error."""
    shows_at: int | None = None
    """Where it shows, if the ranks parted earlier without anybody noticing: ``pending`` and ``failed`` are of there."""
    after: int = 0
    """Up to here the ranks had parted before and gone on: what was there is another fault."""

    @property
    def group(self) -> Group:
        """The group."""
        return self.board.group

    @property
    def mismatch(self) -> bool:
        """Whether ranks called different things."""
        return len(self.clusters) > 1

    @property
    def came(self) -> tuple[int, ...]:
        """All ranks that entered some operation there."""
        return tuple(sorted(rank for cluster in self.clusters for rank in cluster))

    @property
    def waits(self) -> bool:
        """Whether anybody is held up here (or was, until an error ended it)."""
        return bool(self.pending or self.failed)

    def held_in(self, rank: int) -> Operation | None:
        """What a rank waits in: its operation where the parting shows."""
        lane = self.board.lanes.get(rank)
        return lane.at(self.shows_at or self.seq) if lane is not None else None

    def operation(self, rank: int) -> Operation | None:
        """What a rank called there."""
        return self.board.lanes[rank].at(self.seq) if rank in self.board.lanes else None

    def calls(self) -> dict[int, Call]:
        """What each rank that came called."""
        found = {rank: self.operation(rank) for rank in self.came}
        return {rank: operation.call for rank, operation in found.items() if operation is not None}

    @property
    def time(self) -> int | None:
        """When the last rank that came had come."""
        times = [operation.entered for rank in self.came if (operation := self.operation(rank)) and operation.entered]
        return max(times, default=None)

    def odd(self) -> tuple[int, ...] | None:
        """The ranks in the minority; None where no majority can be had (two ranks, an even split)."""
        if not self.mismatch or len(self.clusters[0]) <= len(self.clusters[1]):
            return None
        return tuple(sorted(rank for cluster in self.clusters[1:] for rank in cluster))


def part(group: GroupBoard) -> Parting | None:
    """Where the ranks of a group part; None if they are all at the same point, or too little is known to compare them."""
    lanes = list(group.lanes.values())
    if len(lanes) < 2 and not group.unseen:
        return None
    mismatch = _first_mismatch(lanes)
    ends = {lane.rank: lane.last for lane in lanes}
    shortest, longest = min(ends.values()), max(ends.values())
    if mismatch is None:
        # Ranks that are all at the same point still part from one that was never seen, if there is one.
        seq = shortest + 1 if longest > shortest else shortest
        if longest == shortest and (not group.unseen or longest < 1):
            return None
    else:
        # Someone may not have come as far as the others' first mismatch: he is behind, not mismatched.
        seq = mismatch
    here = _parting(group, lanes, seq)
    if not here.mismatch and here.absent and not here.waits:
        # A broadcast waits for nobody at its source: those who went on are held where they are now.
        later = _held_after(group, seq)
        return here if later is None else replace(later, after=0)
    return here


def together(group: GroupBoard) -> Parting | None:
    """The operation in which all ranks of a group are and which is not over for some of them; None if there is none."""
    lanes = list(group.lanes.values())
    parted = part(group)
    if not lanes or group.unseen or len({lane.last for lane in lanes}) > 1 or (parted is not None and not _went_on(parted)):
        return None
    here = _parting(group, lanes, lanes[0].last)
    if here.mismatch:
        return None
    # All ranks came: an operation of which the end cannot be seen may well be over.
    seen = tuple(rank for rank in here.pending if (operation := here.operation(rank)) is not None and operation.pending)
    return replace(here, pending=seen) if seen else None


def _first_mismatch(lanes: list[Lane]) -> int | None:
    reference = max(lanes, key=lambda lane: (len(lane.rows), -lane.rank), default=None)
    if reference is None:
        return None
    found = [seq for lane in lanes if lane is not reference and (seq := first_difference(reference, lane)) is not None]
    return min(found, default=None)


def _parting(group: GroupBoard, lanes: list[Lane], seq: int) -> Parting:
    came = [lane for lane in lanes if lane.key(seq) is not None]
    by_key: dict[int, list[int]] = {}
    for lane in came:
        by_key.setdefault(lane.key(seq) or 0, []).append(lane.rank)
    _share_unknown(by_key)
    clusters = sorted((tuple(sorted(ranks)) for ranks in by_key.values()), key=lambda ranks: (-len(ranks), ranks))
    operations = [operation for lane in came if (operation := lane.at(seq)) is not None]
    return Parting(
        board=group,
        seq=seq,
        clusters=tuple(clusters),
        absent=tuple(sorted(lane.rank for lane in lanes if lane.last < seq)),
        pending=tuple(sorted(operation.rank for operation in operations if _open(operation))),
        failed=tuple(sorted(operation.rank for operation in operations if operation.failed)),
    )


def _open(operation: Operation) -> bool:
    """Whether an operation that not all ranks share is still going on.

    Where its completion cannot be seen (NCCL), it is: without all ranks it cannot be over.
    """
    return operation.pending or (not operation.call.completion_known and operation.completed is None)


def _share_unknown(by_key: dict[int, list[int]]) -> None:
    """A call that is not known counts with the most common one: it is evidence for nothing."""
    unknown = by_key.pop(0, None)
    if unknown is not None:
        common = Counter({key: len(ranks) for key, ranks in by_key.items()}).most_common(1)
        by_key.setdefault(common[0][0] if common else 0, []).extend(unknown)


def all_partings(board: Board) -> list[Parting]:
    """The partings of all groups at which something is wrong or somebody waits, earliest first."""
    tokens = Tokens()
    kept = [parting for group in board.groups for parting in _placed(_partings(group), tokens)]
    return sorted(kept, key=lambda parting: parting.time or 0)


def _placed(partings: list[Parting], tokens: Tokens) -> list[Parting]:
    """Those at which something is wrong or somebody waits, where the ranks really parted."""
    kept = [retreat(each, tokens) for each in partings if each.mismatch or each.waits or _never_made(each)]
    if len(kept) > 1 and kept[0].shows_at is not None:
        # Ranks that are shifted against each other never meet again: what they wait in now comes of that.
        first, later = kept
        return [replace(first, pending=later.pending, failed=later.failed, shows_at=later.shows_at or later.seq)]
    return kept


def _partings(group: GroupBoard) -> list[Parting]:
    """Where the ranks of a group part; if nobody noticed, also where somebody waits now."""
    first = part(group)
    if first is None:
        return []
    later = _held_after(group, first.seq) if _went_on(first) else None
    return [first] if later is None else [first, later]


def _went_on(parting: Parting) -> bool:
    """Whether ranks called different things and all went on."""
    return parting.mismatch and not parting.waits and not parting.absent


def _held_after(group: GroupBoard, seq: int) -> Parting | None:
    """The first operation after ``seq`` in which a rank is held, if not all are in the same there."""
    lanes = list(group.lanes.values())
    held = min((first for lane in lanes if (first := _first_open(lane, seq)) is not None), default=None)
    here = _parting(group, lanes, held) if held is not None else None
    return replace(here, after=seq) if here is not None and here.waits and (here.mismatch or here.absent) else None


def _first_open(lane: Lane, after: int) -> int | None:
    """The oldest of a rank's newest operations of which none is known to be over; None if its newest is."""
    found = None
    for seq in range(lane.last, max(after, lane.first - 1), -1):
        operation = lane.at(seq)
        if operation is None or not (operation.failed or _open(operation)):
            break
        found = seq
    return found


def _never_made(parting: Parting) -> bool:
    """Whether a rank has ended without making a group that the others made: nobody waits for it on gloo."""
    ended = [parting.board.lanes[rank].trace for rank in parting.absent]
    return parting.board.kind == "group_creation" and any(trace.exit is not None and trace.failure is None for trace in ended)


def retreat(parting: Parting, tokens: Tokens) -> Parting:
    """The parting where the ranks really parted, if that was earlier than it shows."""
    if parting.board.kind == "group_creation" and parting.mismatch:
        return _where_lines_part(parting, tokens)
    classes = sorted([*parting.clusters, parting.absent], key=len, reverse=True)
    if parting.board.kind != "collective" or len(classes) < 2 or not classes[1]:
        return parting
    places = []
    for number, others in enumerate(classes):
        references = [each[0] for each in classes[:number] if each]
        for rank in others[:MAX_COMPARED]:
            found = (parted_before(parting.board, rank, each, parting.seq, tokens, parting.after) for each in references)
            places += [next((each for each in found if each is not None), parting.seq)]
    first = min(places, default=parting.seq)
    return _moved(parting, first, tokens) if first < parting.seq else parting


def _where_lines_part(parting: Parting, tokens: Tokens) -> Parting:
    """For calls about groups: where ranks made the last groups of the same members, they may have done so at other lines."""
    lanes, seq = list(parting.board.lanes.values()), parting.seq
    low = max(lane.first for lane in lanes)
    while seq > low and len({tokens.of(lane, seq - 1, seq - 1)[0] for lane in lanes}) > 1:
        seq -= 1
    return _moved(parting, seq, tokens) if seq < parting.seq else parting


MAX_COMPARED = 64
"""How many ranks are aligned with a reference; what holds for so many holds for the rest of their class."""


def _moved(parting: Parting, seq: int, tokens: Tokens) -> Parting:
    by_token: dict[int, list[int]] = {}
    for rank, lane in parting.board.lanes.items():
        if lane.key(seq) is not None:
            by_token.setdefault(tokens.of(lane, seq, seq)[0], []).append(rank)
    clusters = sorted((tuple(sorted(ranks)) for ranks in by_token.values()), key=lambda ranks: (-len(ranks), ranks))
    return replace(
        parting,
        seq=seq,
        clusters=tuple(clusters),
        absent=tuple(sorted(lane.rank for lane in parting.board.lanes.values() if lane.last < seq)),
        shows_at=parting.seq,
    )


def divergence(parting: Parting, culprits: tuple[int, ...] = ()) -> Divergence:
    """The parting as the report shows it."""
    reference = _reference(parting, culprits)
    first = parting.operation(reference) if reference is not None else None
    # Whoever did not call what the others call is mismatched; without a culprit, whoever is not in the first cluster.
    same = next((cluster for cluster in parting.clusters if reference in cluster), ())
    by_rank: dict[int, AtDivergence] = {}
    for rank in parting.group.ranks:
        by_rank[rank] = _at(parting, rank, rank in same)
    group = parting.group
    return Divergence(
        group=group,
        kind="rendezvous" if first is not None and first.call.op == "init_process_group" else parting.board.kind,
        seq=parting.seq,
        op=first.call.op if first is not None else "unknown",
        by_rank=by_rank,
        bucket=first.call.bucket if first is not None else None,
        time=parting.time,
    )


def _reference(parting: Parting, culprits: tuple[int, ...]) -> int | None:
    """A rank whose operation names the divergence: one that is no culprit if there is one, of the largest cluster."""
    ordered = [rank for cluster in parting.clusters for rank in cluster]
    return next((rank for rank in ordered if rank not in culprits), ordered[0] if ordered else None)


def _at(parting: Parting, rank: int, same: bool) -> AtDivergence:
    operation = parting.operation(rank)
    if operation is None:
        lane = parting.board.lanes.get(rank)
        last = lane.at(lane.last) if lane is not None else None
        return AtDivergence(OperationState.ABSENT, last)
    if not same:
        return AtDivergence(OperationState.MISMATCHED, operation)
    done = rank not in parting.pending and rank not in parting.failed
    return AtDivergence(OperationState.COMPLETED if done else OperationState.WAITING, operation)
