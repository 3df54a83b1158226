"""What logs say that is neither an operation nor an end: as claims, for the diagnosis to weigh."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from desync.evidence.flight_recorder.names import public
from desync.evidence.logs.facts import Barrier, Facts, Fingerprint, Joining, Trouble
from desync.evidence.logs.failures import ENDED_BY_OTHERS, SIGABRT, Failures
from desync.evidence.logs.patterns import NO_EXCEPTION, SIZES_DIFFER
from desync.evidence.logs.ranks import DEFAULT, Ranks, distance
from desync.evidence.logs.speakers import Speaker
from desync.evidence.logs.store import no_listener, unique_id
from desync.evidence.logs.structure import structure
from desync.evidence.logs.victims import is_victim
from desync.model import Claim, ClaimKind, Mark

MAX_QUOTED = 8
"""Lines of one kind that are quoted."""
MAX_SILENT = 4096
ENDS = ("pod_memory", "launcher_end", "srun_end", "shell_end", "death_signal")


def statements(facts: Facts, ranks: Ranks, ends: Failures) -> tuple[Claim, ...]:
    """The claims of one run."""
    return (
        *_barriers(facts, ranks),
        *_present(facts, ranks, ends),
        *_rendezvous(facts, ranks),
        *no_listener(facts, ranks),
        *unique_id(facts, ranks, _failed_with_others(ends)),
        *_network(facts, ranks),
        *_kernel(facts, ranks),
        *_memory(facts, ranks),
        *_watchdog(facts, ranks),
        *_finished(facts),
        *_cancelled(facts),
        *_moving(facts, ranks, ends),
        *_raised(facts, ranks, ends),
        *_ended(facts, ends),
        *_mismatches(facts, ranks),
        *structure(facts),
    )


def _barriers(facts: Facts, ranks: Ranks) -> Iterator[Claim]:
    """Only rank 0's list counts; where it has none, it is itself the one that did not come."""
    reached = {each.reached for each in facts.barriers if each.reached is not None}
    lists = [each for each in facts.barriers if each.missing]
    if not lists and not reached:
        return
    if not lists:
        first = min(facts.barriers, key=lambda each: each.order)
        text = f"{len(reached)} ranks reached it and waited for rank 0, which says nothing"
        yield _in_job(_absent(first, (0,), text), facts.barriers)
        return
    missing = {rank for each in lists for rank in each.missing}
    longest = max(lists, key=lambda each: len(each.missing))
    text = longest.text
    if len(missing) == 1 and not any("Ranks" in each.text for each in lists):
        # Without wait_all_ranks rank 0 asks them in ascending order and stops at the first that fails: those below it have
        # answered, whether or not the log has a word of theirs, and of those above nothing is known.
        text += " (it asks in ascending order and stops there: of those above only who speaks is known to have come)"
    missing -= reached
    yield _in_job(_absent(longest, tuple(sorted(missing)), text), facts.barriers)


def _in_job(claim: Claim, barriers: Iterable[Barrier]) -> Claim:
    """The claim with the ranks of the job for those of the group; with none where they cannot be told."""
    start, step = _layout(barriers)
    if (start, step) == (0, 1):
        return claim
    ranks = tuple(start + rank * step for rank in claim.ranks) if step is not None else ()
    return replace(claim, ranks=ranks, group=None, op=None)


def _layout(barriers: Iterable[Barrier]) -> tuple[int, int | None]:
    """Rank of a group's first member and the distance of its members, from who says which rank of the group it is."""
    known: dict[int, int] = {}
    for each in barriers:
        own = each.by if each.by is not None else each.reached
        if own is not None and each.speaker.rank is not None:
            known[own] = each.speaker.rank
    if all(own == rank for own, rank in known.items()):
        return 0, 1
    step = distance(known)
    own = min(known)
    return (known[own] - own * (step or 0), step)


def _absent(barrier: Barrier, missing: tuple[int, ...], text: str) -> Claim:
    time = barrier.time or barrier.order
    return Claim(ClaimKind.ABSENT, missing, text, by=barrier.by or 0, time=time, group=DEFAULT, op="barrier")


def _present(facts: Facts, ranks: Ranks, ends: Failures) -> Iterator[Claim]:
    """Ranks of which no time-out is printed and that waited all the same, as far as that can be told."""
    spoken = {ranks.of_tagged(each.speaker, each.tag, each.group_rank) for each in facts.timeouts}
    if victims := tuple(sorted(_failed_with_others(ends) - spoken)):
        yield Claim(ClaimKind.PRESENT, victims, "their own errors are those of ranks that were waiting for others")
    if not facts.timeouts:
        return
    aborted = tuple(sorted(ends.aborted - spoken))
    if aborted:
        text = "ended by signal 6 after a time-out, as their own watchdog ends those that waited"
        yield Claim(ClaimKind.PRESENT, aborted, text)
    if facts.repeated:
        silent = tuple(rank for rank in range(min(ranks.world, MAX_SILENT)) if rank not in spoken)
        yield Claim(ClaimKind.PRESENT, silent, f"Ray has folded {facts.repeated} lines of other ranks away")


def _failed_with_others(ends: Failures) -> set[int]:
    """Ranks that came to an operation or to the store, and failed there because of others."""
    return {rank for rank, mark in ends.marks if _stood_with_others(mark)}


def _stood_with_others(mark: Mark) -> bool:
    """Whether a rank failed inside of torch.distributed because of others; a server for data can reset connections, too."""
    failure = mark.failure
    if failure is None or not is_victim(failure.type, failure.message):
        return False
    said = f"{failure.type.rpartition('.')[2]} {failure.message}"
    inside = any("/torch/distributed/" in frame.file for frame in failure.frames)
    return inside or said.startswith("Dist") or "NCCL" in said or "gloo" in said


def _rendezvous(facts: Facts, ranks: Ranks) -> Iterator[Claim]:
    waits = [each for each in facts.joining if each.key == 1]
    if not waits:
        yield from _quoted(ClaimKind.RENDEZVOUS, (each for each in facts.troubles if each.kind == "no_server"), ranks)
        return
    if facts.finished is not None and not any(each.gave_up for each in waits):
        return
    last = max(waits, key=lambda each: each.order)
    came = {rank for each in waits if (rank := each.rank if each.rank is not None else ranks.of(each.speaker)) is not None}
    missing = tuple(rank for rank in range(last.world) if rank not in came) if _all_heard(came, last) else ()
    if not (any(each.gave_up for each in waits) or last.came != last.world):
        return
    text = f"{last.came} of {last.world} ranks came to the rendezvous"
    yield Claim(ClaimKind.RENDEZVOUS, missing, text, by=last.rank, time=last.time or last.order, op="init_process_group")


def _all_heard(came: set[int], last: Joining) -> bool:
    """Whether every rank that came has named itself, so that those that did not are known."""
    return len(came) == last.came < last.world


def _network(facts: Facts, ranks: Ranks) -> Iterator[Claim]:
    newest = max((each.order for each in facts.troubles if each.kind == "network"), default=0)
    if not facts.failed and any(each.kind == "network_back" and each.order > newest for each in facts.troubles):
        return  # a link that went and came back, and nothing failed
    yield from _quoted(ClaimKind.NETWORK, (each for each in facts.troubles if each.kind == "network"), ranks)


def _quoted(kind: ClaimKind, troubles: Iterable[Trouble], ranks: Ranks) -> Iterator[Claim]:
    for each in sorted(troubles, key=lambda trouble: (trouble.time or 0, trouble.order))[:MAX_QUOTED]:
        rank = ranks.of(each.speaker)
        rank = rank if rank is not None else ranks.of_pid(each.pid, each.host)
        host = f"{each.host}: " if each.host else ""
        yield Claim(kind, () if rank is None else (rank,), host + each.text, by=rank, time=each.time or each.order)


def _kernel(facts: Facts, ranks: Ranks) -> Iterator[Claim]:
    for each in facts.troubles:
        if each.kind == "kernel" and (rank := ranks.of_pid(each.pid)) is not None:
            yield Claim(ClaimKind.KERNEL, (rank,), each.text, time=each.time or each.order)
        elif each.kind == "srun_memory" and each.number is not None:
            who = (each.number,) if ranks.tasks_are_ranks else ()
            yield Claim(ClaimKind.KERNEL, who, each.text, time=each.time or each.order)
        elif each.kind == "oom_events":
            yield Claim(ClaimKind.KERNEL, (), each.text, time=each.time or each.order)


_OF_RANK = re.compile(r".{0,60}?\brank[ :=]{0,2}(\d{1,6})\b.{0,20}?out of memory", re.IGNORECASE)
"""A program's own words in front of a message that it prints."""


def _memory(facts: Facts, ranks: Ranks) -> Iterator[Claim]:
    """A message about memory without a traceback: it was caught, and the rank went on."""
    uncaught = [each for each in facts.tracebacks if not each.handled]
    raised = {each.order for each in uncaught}
    told = {each.message[:100] for each in uncaught}
    for each in facts.troubles:
        if each.kind != "out_of_memory" or each.order in raised or any(text and text in each.text for text in told):
            continue
        rank = ranks.of(each.speaker)
        if rank is None and (said := _OF_RANK.match(each.text)) is not None and int(said[1]) < ranks.world:
            rank = int(said[1])
        if rank is None and each.number is not None and ranks.single_node:
            rank = each.number
        if rank is not None:
            yield Claim(ClaimKind.OUT_OF_MEMORY, (rank,), each.text, by=rank, time=each.time or each.order)


def _watchdog(facts: Facts, ranks: Ranks) -> Iterator[Claim]:
    beats = [each for each in facts.troubles if each.kind == "heartbeat"]
    if beats:
        who = tuple(sorted({rank for each in beats if (rank := ranks.of(each.speaker)) is not None}))
        first = min(beats, key=lambda each: each.order)
        yield Claim(ClaimKind.TEARDOWN, who, first.text, by=ranks.of(first.speaker), time=first.time or first.order)
    if facts.exit_aborted:
        gone = {
            each.rank if each.rank is not None or not ranks.single_node else each.local
            for each in facts.ended
            if each.code == SIGABRT
        }
        who = tuple(sorted(rank for rank in gone if rank is not None))
        yield Claim(ClaimKind.TEARDOWN, who, NO_EXCEPTION, time=facts.finished)
    for each in facts.troubles:
        if each.kind == "gil" and (rank := ranks.of(each.speaker)) is not None:
            yield Claim(ClaimKind.ABSENT, (rank,), each.text, by=rank, time=each.time or each.order)


def _finished(facts: Facts) -> Iterator[Claim]:
    if facts.finished is not None:
        yield Claim(ClaimKind.FINISHED, (), facts.finished_text, time=facts.finished)


def _cancelled(facts: Facts) -> Iterator[Claim]:
    if facts.cancelled:
        yield Claim(ClaimKind.CANCELLED, (), facts.cancelled)


def _moving(facts: Facts, ranks: Ranks, ends: Failures) -> Iterator[Claim]:
    """A progress bar has no rank; if all ranks but one have given up, it is that one's."""
    if not facts.moving:
        return
    silent = (
        set(range(ranks.world))
        - {ranks.of_tagged(each.speaker, each.tag, each.group_rank) for each in facts.timeouts}
        - ends.victims
    )
    if len(silent) == 1:
        yield Claim(ClaimKind.MOVING, tuple(silent), facts.moving)


def _is_bare(speaker: Speaker) -> bool:
    """Whether nothing at all is said of who speaks: a number that is no rank may contradict a guess."""
    return (speaker.local, speaker.task, speaker.file_number) == (None, None, None)


def _only_silent(facts: Facts, ranks: Ranks, ends: Failures) -> set[int]:
    """The one rank that has neither timed out nor failed where all others have; empty if that tells nobody apart."""
    spoken = {ranks.of_tagged(each.speaker, each.tag, each.group_rank) for each in facts.timeouts}
    silent = set(range(min(ranks.world, MAX_SILENT))) - spoken - {rank for rank, _ in ends.marks} - ends.victims
    return silent if len(silent) == 1 and facts.timeouts else set()


def _raised(facts: Facts, ranks: Ranks, ends: Failures) -> Iterator[Claim]:
    """An exception of its own whose rank no line tells: a guess is the first that the launcher saw, or the only silent rank."""
    own = [each for each in ends.anonymous if not is_victim(each.type, each.message)]
    roots = {each.rank for each in facts.ended if each.root and each.rank is not None and each.code > 0}
    suspects = roots or (_only_silent(facts, ranks, ends) if all(_is_bare(each.speaker) for each in own) else set())
    guess = tuple(suspects) if len(own) == 1 == len(suspects) else ()
    for each in own[:MAX_QUOTED]:
        text = f"{each.type}: {each.message}".splitlines()[0][:300]
        yield Claim(ClaimKind.RAISED, guess, text, time=each.time or each.order)
    for end in ends.unplaced[:MAX_QUOTED]:
        how = f"signal {-end.code}" if end.code < 0 else f"status {end.code}"
        which = f"local rank {end.local}" if end.local is not None else "a process"
        said = f"{which} of {end.host or 'its node'} ended with {how}"
        yield Claim(ClaimKind.RAISED, (), said, time=end.time or end.order, op="killed" if end.code < 0 else "exited")


def _ended(facts: Facts, ends: Failures) -> Iterator[Claim]:
    """Ends that srun, a shell, DeepSpeed or Kubernetes tell of without a rank; what only follows from others' is left out."""
    said = {each.text: each for each in facts.troubles if each.kind in ENDS}
    for each in list(said.values())[:MAX_QUOTED]:
        code = each.number or 0
        first = each.kind == "launcher_end" and code < 0 and code not in ENDED_BY_OTHERS
        if each.kind == "death_signal":
            op = "told" if not facts.cancelled else None
        elif each.kind == "pod_memory":
            op = "memory"
        elif each.kind == "shell_end":
            op = "shell" if not (ends.told or ends.exits) else None
        else:
            op = ("killed" if code < 0 else "exited") if first or not (ends.told or ends.exits) else None
        if op is not None:
            yield Claim(ClaimKind.ENDED, (), each.text, time=each.time or each.order, op=op, seq=abs(code))


def _mismatches(facts: Facts, ranks: Ranks) -> Iterator[Claim]:
    """Comparisons that torch and gloo made themselves."""
    refused = [each for each in facts.fingerprints if each.mismatch]
    if refused:
        first = refused[0]
        text = f"the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL refused operation #{first.seq}"
        odd = _named_by_most(refused, ranks)
        yield Claim(ClaimKind.MISMATCH, odd, text, time=first.time or first.order, op=public(first.op), seq=first.seq)
    elif facts.refused:
        text = "the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL refused an operation; its line is cut"
        yield Claim(ClaimKind.MISMATCH, (), text, time=min(facts.refused), seq=0)
    for each in facts.tracebacks:
        if (found := SIZES_DIFFER.search(each.message)) is not None:
            yield Claim(ClaimKind.MISMATCH, (), found[0], by=each.speaker.rank, time=each.time or each.order)
            return
    if facts.sizes_differ:
        yield Claim(ClaimKind.MISMATCH, (), facts.sizes_differ)


def _named_by_most(refused: list[Fingerprint], ranks: Ranks) -> tuple[int, ...]:
    """The rank that differs: all right ones name it, it names the first of them; empty unless one is named more often."""
    named: Counter[int] = Counter()
    for each in refused:
        rank = ranks.of(each.speaker, each.group_rank)
        if rank is not None and each.other is not None:
            named[rank - each.group_rank + each.other] += 1  # groups of neighbours: at the same distance
    (first, times), *others = named.most_common() or [(0, 0)]
    return (first,) if times > 1 and (not others or times > others[0][1]) else ()
