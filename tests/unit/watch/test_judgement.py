from array import array
from dataclasses import replace

import pytest

from desync.model import (
    AtDivergence,
    Call,
    Cause,
    Certainty,
    Diagnosis,
    Divergence,
    Evidence,
    Exit,
    Finding,
    Group,
    Job,
    Kind,
    OperationState,
    OperationTable,
    Status,
    Trace,
)
from desync.watch.judgement import has_recovered, joined, lasted_ns, standstill, still_waits, with_stacks, worth_reporting

CALL = Call("all_reduce", Kind.COLLECTIVE)


def trace(rank: int, *completed: int, dropped: int = 0) -> Trace:
    """A rank whose operations 1, 2, … were completed at these times: 0 not yet, negative failed."""
    count = len(completed)
    table = OperationTable(
        calls=(CALL,),
        groups=("0",),
        call=array("q", [0] * count),
        group=array("q", [0] * count),
        seq=array("q", range(dropped + 1, dropped + count + 1)),
        thread=array("q", [1] * count),
        entered=array("q", (100 + n for n in range(dropped, dropped + count))),
        returned=array("q", [0] * count),
        completed=array("q", completed),
    )
    return Trace(rank=rank, operations=table, dropped=dropped)


def finding(status: Status, cause: Cause = Cause.STALLED_RANK, ranks: tuple[int, ...] = (1,)) -> Finding:
    waiting = trace(0, 1, 0).operations.row(0, 1)
    by_rank = {0: AtDivergence(OperationState.WAITING, waiting), 1: AtDivergence(OperationState.ABSENT)}
    divergence = Divergence(Group("0", (0, 1)), "collective", 2, "all_reduce", by_rank)
    return Finding(status, cause, Certainty.LIKELY, ranks, "s", "a", divergence=divergence)


def diagnosis(*findings: Finding) -> Diagnosis:
    return Diagnosis(findings, findings[0].status if findings else Status.HEALTHY, {}, notes=("n",))


HANG = finding(Status.HANG)


@pytest.mark.parametrize(
    ("completed", "recovered"),
    [((1, 0), False), ((1, 5), True), ((1, -5), False), ((1,), False)],
    ids=["still waits", "completed", "failed", "not there"],
)
def test_a_hang_has_passed_when_what_waited_is_complete(completed: tuple[int, ...], recovered: bool) -> None:
    evidence = Evidence(Job(), (trace(0, *completed), trace(1, 1)))
    assert has_recovered(diagnosis(HANG), evidence, still_found=True) is recovered


def test_an_operation_that_was_overwritten_is_long_over() -> None:
    later = trace(0, 1, 1, dropped=50)
    assert has_recovered(diagnosis(HANG), Evidence(Job(), (later,)), still_found=False)


def test_crashes_and_disagreements_do_not_pass() -> None:
    evidence = Evidence(Job(), (trace(0, 1, 5),))
    for status in (Status.CRASH, Status.MISMATCH, Status.DRIFT):
        assert not has_recovered(diagnosis(finding(status)), evidence, still_found=False)


def test_a_hang_without_a_place_has_passed_when_nothing_is_found_any_more() -> None:
    anywhere = diagnosis(replace(HANG, divergence=None))
    assert has_recovered(anywhere, Evidence(Job(), ()), still_found=False)
    assert not has_recovered(anywhere, Evidence(Job(), ()), still_found=True)


@pytest.mark.parametrize(
    ("exit_", "recovered"),
    [(Exit(9, 0, announced=True), True), (Exit(9, -15), False), (Exit(9, None), False), (Exit(9, -6, announced=True), False)],
)
def test_a_rank_that_had_to_be_ended_has_not_recovered(exit_: Exit, recovered: bool) -> None:
    anywhere = diagnosis(replace(HANG, divergence=None))
    evidence = Evidence(Job(), (trace(0, 1), replace(trace(1, 1), exit=exit_)))
    assert has_recovered(anywhere, evidence, still_found=False) is recovered


def test_who_is_only_late_does_not_interrupt_the_user() -> None:
    assert worth_reporting(diagnosis()) is None
    assert worth_reporting(diagnosis(finding(Status.SLOW))) is None
    assert worth_reporting(diagnosis(finding(Status.MISMATCH), HANG)) is not None
    assert standstill(diagnosis(finding(Status.MISMATCH), HANG)) is HANG
    assert standstill(diagnosis(finding(Status.MISMATCH))) is None


def test_what_was_reported_leads_the_last_word_and_what_came_later_follows_from_it() -> None:
    timeout = finding(Status.CRASH, Cause.EXCEPTION, (0,))
    last = joined(diagnosis(HANG), diagnosis(timeout))
    assert [entry.cause for entry in last.findings] == [Cause.STALLED_RANK, Cause.EXCEPTION]
    assert [entry.follows_from for entry in last.findings] == [None, 0]
    assert last.status is Status.HANG
    refined = diagnosis(replace(HANG, summary="more is known"), timeout)
    assert joined(diagnosis(HANG), refined) is refined
    assert joined(diagnosis(), refined) is refined


def test_the_last_word_that_names_a_culprit_replaces_one_that_named_none() -> None:
    unsure, sure = finding(Status.CRASH, Cause.STRUCTURE_MISMATCH, ()), finding(Status.CRASH, Cause.STRUCTURE_MISMATCH, (1,))
    final = diagnosis(sure)
    assert joined(diagnosis(unsure), final) is final
    assert [entry.follows_from for entry in joined(diagnosis(sure), diagnosis(unsure)).findings] == [None, 0]


def test_what_was_seen_is_reported_although_it_moved_while_stacks_were_taken() -> None:
    silent = finding(Status.MISMATCH, Cause.ARGUMENT_MISMATCH)
    seen, refined = diagnosis(silent, HANG), diagnosis(silent, replace(HANG, summary="more is known"))
    assert with_stacks(seen, refined) is refined
    for again in (None, diagnosis(), diagnosis(silent)):
        assert with_stacks(seen, again) is seen


def test_a_hang_behind_a_mismatch_is_kept_when_the_job_was_ended_for_it() -> None:
    silent, timeout = finding(Status.MISMATCH, Cause.ARGUMENT_MISMATCH), finding(Status.CRASH, Cause.EXCEPTION, (0,))
    last = joined(diagnosis(silent, HANG), diagnosis(silent, timeout))
    assert [(entry.cause, entry.follows_from) for entry in last.findings] == [
        (Cause.ARGUMENT_MISMATCH, None),
        (Cause.STALLED_RANK, None),
        (Cause.EXCEPTION, 1),
    ]


@pytest.mark.parametrize(("completed", "lasted"), [((1, 0), None), ((1, 150), 50), ((1, -150), None), ((1,), None)])
def test_how_long_ranks_waited_is_known_when_all_have_got_through(completed: tuple[int, ...], lasted: int | None) -> None:
    assert HANG.divergence is not None
    late = replace(HANG, divergence=replace(HANG.divergence, time=100))
    assert lasted_ns(late, Evidence(Job(), (trace(0, *completed), trace(1, 1)))) == lasted


def test_how_long_is_not_known_where_it_has_no_place_or_was_overwritten() -> None:
    assert lasted_ns(replace(HANG, divergence=None), Evidence(Job(), (trace(0, 1, 150),))) is None
    assert HANG.divergence is not None
    late = replace(HANG, divergence=replace(HANG.divergence, time=100))
    assert lasted_ns(late, Evidence(Job(), (trace(0, 1, 1, dropped=50),))) is None


@pytest.mark.parametrize(
    ("ranks", "waits"),
    [
        ((trace(0, 1, 0), trace(1, 1)), True),
        ((trace(0, 1, -5),), True),
        ((trace(0, 1, 5),), False),
        ((trace(0, 1, 1, dropped=50),), False),
        ((), False),
    ],
    ids=["still", "until it failed", "came through", "overwritten", "unseen"],
)
def test_who_waits_still(ranks: tuple[Trace, ...], waits: bool) -> None:
    assert still_waits(HANG, Evidence(Job(), ranks)) is waits
    assert not still_waits(replace(HANG, divergence=None), Evidence(Job(), ranks))
