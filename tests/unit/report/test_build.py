from __future__ import annotations

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
    Kind,
    OperationState,
    RankState,
    Status,
    without_failures,
)
from desync.report.build import build_report, iso
from desync.report.model import Cell, CellState, LastOperation, Role, Timing
from desync.report.window import build_window
from tests.unit.report import report_samples as samples
from tests.unit.report.report_samples import GRADIENTS, START, Sample, Step, diagnosis, frame, job, steps, table, trace


def test_verdict_divergence_ranks_and_timing_are_those_of_evidence_and_diagnosis() -> None:
    report = samples.uneven_inputs().report()

    assert (report.verdict.status, report.verdict.cause, report.verdict.culprit_ranks) == (
        Status.HANG,
        Cause.UNEVEN_INPUTS,
        (2,),
    )
    assert report.verdict.summary == report.findings[0].summary
    assert report.divergence is not None
    assert (report.divergence.group, report.divergence.seq, report.divergence.kind) == ("default_pg", 17, "collective")
    stuck, absent = report.divergence.by_rank[0], report.divergence.by_rank[2]
    assert (stuck.state, stuck.op, stuck.shapes, stuck.dtype, stuck.reduce_op, stuck.seq) == (
        OperationState.WAITING,
        "all_reduce",
        ((20,),),
        "float32",
        "sum",
        17,
    )
    assert stuck.callsite == frame("train_epoch", "train.py", 42)
    assert (absent.state, absent.op, absent.callsite) == (OperationState.ABSENT, None, None)
    assert [entry.state for entry in report.ranks] == [
        RankState.WAITING,
        RankState.WAITING,
        RankState.RUNNING,
        RankState.WAITING,
    ]
    assert report.ranks[2].last == LastOperation("default_pg", 16, "all_reduce")
    assert report.ranks[2].progress.loader_exhausted
    assert report.timing.diverged_at == "2025-11-30T12:03:04.420000+00:00"
    assert report.job.started == "2025-11-30T12:03:04.250000+00:00"


def test_equal_stacks_are_one_entry_with_its_ranks() -> None:
    report = samples.many_ranks().report()

    assert [len(stack.ranks) for stack in report.stacks] == [63, 1]
    assert report.stacks[1].ranks == (3,)


@pytest.mark.parametrize(
    ("name", "role", "where", "op"),
    [
        ("uneven_inputs", Role.AT, "train.py:84", None),
        ("exception", Role.RAISED, "data.py:31", None),
        ("rank_only_branch", Role.INSTEAD, "checkpoint.py:18", "barrier"),
        ("killed", Role.LAST, "train.py:42", "all_reduce"),
        ("deadlock_of_sends", Role.WAITS, "train.py:42", "send"),
    ],
)
def test_the_culprits_place_is_the_most_telling_one(name: str, role: Role, where: str, op: str | None) -> None:
    first = samples.SAMPLES[name]().report().verdict.places[0]

    assert (first.role, f"{first.frame.file.rpartition('/')[2]}:{first.frame.line}", first.op) == (role, where, op)


def test_those_who_wait_come_after_the_culprits_as_one_place() -> None:
    places = samples.many_ranks().report().verdict.places

    assert [place.ranks for place in places] == [(3,), tuple(rank for rank in range(64) if rank != 3)]
    assert places[1].role is Role.WAITS


def _healthy(**changes: object) -> Sample:
    base = samples.healthy()
    return replace(base, evidence=replace(base.evidence, **changes))


def test_a_healthy_job_is_proven_only_if_every_rank_was_seen_to_end() -> None:
    seen = samples.healthy()
    silent = replace(seen.evidence.traces[3], exit=None)
    one_unseen = _healthy(traces=(*seen.evidence.traces[:3], silent))
    one_missing = _healthy(traces=seen.evidence.traces[:3])

    verdict = seen.report().verdict
    assert (verdict.status, verdict.cause, verdict.certainty, verdict.culprit_ranks) == (
        Status.HEALTHY,
        Cause.NONE,
        Certainty.PROVEN,
        (),
    )
    assert verdict.summary == "All 4 ranks went through the same 128 operations and ended."
    assert one_unseen.report().verdict.certainty is Certainty.LIKELY
    assert one_missing.report().verdict.certainty is Certainty.LIKELY


def test_other_summaries_of_jobs_without_findings() -> None:
    traces = samples.healthy().evidence.traces
    uneven = replace(traces[0], operations=table(steps(GRADIENTS, 100)), dropped=20)

    assert "120 to 128 operations that agree" in _healthy(traces=(uneven, *traces[1:])).report().verdict.summary
    assert "so far" in _healthy(ended=False).report().verdict.summary
    assert _healthy(traces=traces[:1], job=job(1)).report().verdict.summary.startswith("The only rank went through 128")


def test_too_little_seen_is_unknown_and_says_what_would_show_more() -> None:
    silent = samples.unknown().report().verdict
    failed = _healthy(job=job(4, exit_code=1)).report().verdict
    unsure = replace(samples.healthy(), diagnosis=Diagnosis((), Status.UNKNOWN, {})).report().verdict

    for verdict in (silent, failed, unsure):
        assert (verdict.status, verdict.cause) == (Status.UNKNOWN, Cause.UNKNOWN)
        assert verdict.advice
    assert "status 1" in failed.summary


def test_a_rank_that_left_no_record_is_listed_as_unknown() -> None:
    base = samples.uneven_inputs()
    evidence = replace(base.evidence, traces=base.evidence.traces[:3])
    states = {rank: state for rank, state in base.diagnosis.states.items() if rank < 3}

    entry = build_report(evidence, replace(base.diagnosis, states=states), Timing()).ranks[3]

    assert (entry.rank, entry.state, entry.pid, entry.last) == (3, RankState.UNKNOWN, None, None)


def test_notes_name_the_ranks_that_made_them_and_those_that_are_awaited() -> None:
    base = samples.healthy()
    traces = tuple(replace(made, notes=("the heap was full",) if made.rank else ()) for made in base.evidence.traces)
    evidence = replace(base.evidence, traces=traces, notes=("no stacks",))
    awaiting = replace(base.diagnosis, notes=("no stacks", "one group unseen"), awaiting={2: (0, 1)})

    assert build_report(evidence, awaiting, Timing()).notes == (
        "no stacks",
        "one group unseen",
        "rank 2 is alive and awaited by ranks 0-1; it may still come",
        "ranks 1-3: the heap was full",
    )


def test_what_a_job_says_is_bounded() -> None:
    report = samples.hostile().report()

    assert len(report.findings[0].evidence) == 64
    exception = report.ranks[1].exception
    assert exception is not None
    assert len(exception.message) == 1000
    assert exception.message.endswith("…")


def test_times_no_calendar_has_are_unknown() -> None:
    assert iso(None) is None
    assert iso(1 << 62) is not None
    assert iso(1 << 80) is None


def _window_rows(made: list[list[Step]], seq: int, states: list[OperationState], dropped: int = 0) -> list[list[Cell | None]]:
    group = Group("default_pg", tuple(range(len(made))))
    traces = tuple(trace(rank, operations, dropped=dropped) for rank, operations in enumerate(made))
    standing = {rank: samples.at(traces[rank], seq, state) for rank, state in enumerate(states)}
    window = build_window(Evidence(job(len(made)), traces), Divergence(group, "collective", seq, "all_reduce", standing))
    by_rank = {rank: list(row.cells) for row in window.rows for rank in row.ranks}
    return [by_rank[rank] for rank in range(len(made))]


def _signs(cells: list[Cell | None]) -> str:
    return " ".join(cell.state.value if cell else "." for cell in cells)


def test_the_window_shows_what_each_rank_did_around_the_divergence() -> None:
    other = Call("barrier", Kind.COLLECTIVE)
    behind = Step(GRADIENTS, 8, done=None)
    early = Step(GRADIENTS, 9)
    rows = _window_rows(
        [
            [*steps(GRADIENTS, 6, pending=True), behind, early],
            [*steps(GRADIENTS, 6), Step(GRADIENTS, 7, done=None, failed=True)],
            [*steps(GRADIENTS, 6), *steps(other, 9, group="tp")],
            [step for step in steps(GRADIENTS, 6) if step.seq > 4],
        ],
        7,
        [OperationState.WAITING, OperationState.WAITING, OperationState.ABSENT, OperationState.ABSENT],
    )

    assert [_signs(cells) for cells in rows] == [
        "done done done done done done waiting waiting done",
        "done done done done done done failed . .",
        "done done done done done done absent . .",
        "unseen unseen unseen unseen done done absent . .",
    ]


def test_an_absent_rank_inside_another_operation_shows_it() -> None:
    inside = Step(Call("barrier", Kind.COLLECTIVE), 1, "tp", done=None)
    made = (trace(0, steps(GRADIENTS, 0, pending=True)), trace(1, [inside]))
    standing = {
        0: samples.at(made[0], 1, OperationState.WAITING),
        1: AtDivergence(OperationState.ABSENT, made[1].operations.row(1, 0)),
    }
    divergence = Divergence(Group("default_pg", (0, 1, 2)), "collective", 1, "all_reduce", standing)

    window = build_window(Evidence(job(3), made), divergence)

    assert [(row.ranks, row.cells[0].state, row.cells[0].op) for row in window.rows if row.cells[0]] == [
        ((0,), CellState.WAITING, "all_reduce"),
        ((1,), CellState.ABSENT, "barrier"),
        ((2,), CellState.UNSEEN, None),
    ]


def test_point_to_point_is_shown_by_recency() -> None:
    window = samples.deadlock_of_sends().report().window

    assert window is not None
    assert window.columns == ("-3", "-2", "-1", "now")
    assert [cell.op for cell in window.rows[0].cells if cell] == ["all_reduce", "send", "recv", "send"]
    assert [row.cells[3].peer for row in window.rows if row.cells[3]] == [1, 0]


def test_exit_status_and_signal_are_kept() -> None:
    made = trace(0, steps(GRADIENTS, 1), exit=Exit(START, -9))

    report = build_report(Evidence(job(1), (made,)), diagnosis([], {0: RankState.KILLED}), Timing())

    assert report.ranks[0].exit_code == -9


def test_ranks_that_never_came_to_a_rendezvous_are_absent_beside_those_that_wait() -> None:
    call = Call("init_process_group", Kind.GROUP, site=samples.LOOP)
    made = tuple(trace(rank, [Step(call, 1, done=None)]) for rank in range(2))
    standing = {rank: AtDivergence(OperationState.WAITING, made[rank].operations.row(rank, 0)) for rank in range(2)}
    divergence = Divergence(
        Group("default_pg", (0, 1, 2)),
        "rendezvous",
        1,
        "init_process_group",
        {**standing, 2: AtDivergence(OperationState.ABSENT)},
    )

    window = build_window(Evidence(job(3), made), divergence)

    assert [(row.ranks, _signs(list(row.cells))) for row in window.rows] == [((0, 1), "waiting"), ((2,), "absent")]


def test_in_a_circle_over_two_groups_each_rank_is_shown_where_it_waits() -> None:
    first = trace(0, [Step(GRADIENTS, 1, "1", done=None)])
    other = replace(GRADIENTS, site=samples.SAVE)
    second = trace(1, [Step(other, 1, "2", done=None)])
    standing = {0: samples.at(first, 1, OperationState.WAITING, "1"), 1: AtDivergence(OperationState.ABSENT)}
    divergence = Divergence(Group("1", (0, 1)), "collective", 1, "all_reduce", standing)
    finding = replace(samples.rank_only_branch().diagnosis.findings[0], culprit_ranks=(), divergence=divergence)

    report = build_report(Evidence(job(2), (first, second)), diagnosis([finding], {}), Timing())

    assert [(place.ranks, place.frame.file.rpartition("/")[2]) for place in report.verdict.places] == [
        ((0,), "train.py"),
        ((1,), "checkpoint.py"),
    ]
    assert report.window is not None
    cell = report.window.rows[1].cells[0]
    assert cell is not None
    assert (cell.state, cell.op, cell.group) == (CellState.ABSENT, "all_reduce", "2")


def test_a_stack_from_before_the_fault_is_none_of_it() -> None:
    sample = samples.uneven_inputs()
    finding = replace(sample.diagnosis.findings[0], time=START)
    old = tuple(replace(stack, time=START - 20_000_000_000) if stack.rank == 2 else stack for stack in sample.evidence.stacks)

    report = build_report(replace(sample.evidence, stacks=old), diagnosis([finding], sample.diagnosis.states), Timing())

    assert {rank for stack in report.stacks for rank in stack.ranks} == {0, 1, 3}
    assert report.verdict.places[0].role is Role.LAST


def test_the_picture_of_a_circle_has_everybody_in_it_and_what_each_is_in() -> None:
    sample = samples.circle_of_groups()
    group = Group("3", (0, 2))
    first = sample.evidence.traces[0]
    third = trace(2, [Step(GRADIENTS, 1), Step(GRADIENTS, 1, "3", done=None)], groups={"3": group})
    away = trace(3, [Step(GRADIENTS, 1)])
    # Rank 0 waits for rank 1 in one group, and a thread of it in another group for rank 2, which waits there for nobody.
    inside = trace(0, [Step(GRADIENTS, 1), Step(GRADIENTS, 1, "3", done=None), Step(GRADIENTS, 1, "1", done=None)])
    inside = replace(inside, groups={**first.groups, "3": group})
    third = replace(third, operations=table([Step(GRADIENTS, 1)]))

    evidence = replace(sample.evidence, traces=(inside, sample.evidence.traces[1], third, away))
    window = build_report(evidence, sample.diagnosis, Timing()).window

    assert window is not None
    assert window.columns[window.at] == "now"
    now = {rank: row.cells[window.at] for row in window.rows for rank in row.ranks}
    assert set(now) == {0, 1, 2}
    assert [(cell.state, cell.group) for cell in (now[0], now[1]) if cell] == [
        (CellState.WAITING, "1"),
        (CellState.WAITING, "2"),
    ]


def test_a_call_about_groups_that_a_rank_left_out_lies_after_its_last_one() -> None:
    creation = Call("new_group", Kind.GROUP)
    first = Step(Call("init_process_group", Kind.GROUP), 1, "calls")
    reduced = [Step(GRADIENTS, 1), Step(GRADIENTS, 2)]
    made = [trace(0, [first, Step(creation, 2, "calls"), *reduced]), trace(1, [first, *reduced])]
    standing = {
        0: AtDivergence(OperationState.COMPLETED, made[0].operations.row(0, 1)),
        1: AtDivergence(OperationState.ABSENT, made[1].operations.row(1, 0)),
    }
    divergence = Divergence(Group("calls", (0, 1)), "group_creation", 2, "new_group", standing)

    window = build_window(Evidence(job(2), tuple(made)), divergence)

    assert window.columns == ("-1", "now", "+1", "+2")
    ops = {row.ranks: [cell.op if cell else None for cell in row.cells] for row in window.rows}
    assert ops == {
        (0,): ["init_process_group", "new_group", "all_reduce", "all_reduce"],
        (1,): ["init_process_group", None, "all_reduce", "all_reduce"],
    }


@pytest.mark.parametrize(("ranks", "words"), [(1, "The only rank went"), (2, "Both ranks went"), (3, "All 3 ranks went")])
def test_who_was_well_is_said_as_people_count(ranks: int, words: str) -> None:
    evidence = Evidence(job(ranks, exit_code=0), tuple(trace(rank, steps(GRADIENTS, 3)) for rank in range(ranks)))

    assert build_report(evidence, diagnosis([], {}), Timing()).verdict.summary.startswith(words)


def test_an_operation_that_failed_when_the_job_had_been_told_to_end_is_shown_as_it_stood() -> None:
    failed = [*steps(GRADIENTS, 6), Step(GRADIENTS, 7, done=None, failed=True)]
    traces = (trace(0, failed), trace(1, steps(GRADIENTS, 6)))
    standing = {
        0: samples.at(trace(0, steps(GRADIENTS, 6, pending=True)), 7, OperationState.WAITING),
        1: AtDivergence(OperationState.ABSENT, None),
    }
    hang = Finding(Status.HANG, Cause.STALLED_RANK, Certainty.LIKELY, (1,), "Rank 1 did not come.", "")
    hang = replace(hang, divergence=Divergence(Group("default_pg", (0, 1)), "collective", 7, "all_reduce", standing))
    (at,) = {operation.completed for operation in traces[0].operations.rows(0) if operation.failed}
    assert at is not None
    for told, state in ((None, CellState.FAILED), (at, CellState.WAITING), (at + 1, CellState.FAILED)):
        evidence = Evidence(replace(job(2), told_to_end=told), traces)
        standing[0] = samples.at(without_failures(evidence).traces[0], 7, OperationState.WAITING)
        window = build_report(evidence, Diagnosis((hang,), Status.HANG, {}), Timing()).window
        assert window is not None
        assert [row.cells[window.at].state for row in window.rows if row.cells[window.at]] == [state, CellState.ABSENT]


def test_a_job_that_was_well_until_it_was_told_to_end() -> None:
    verdict = _healthy(job=replace(job(4, exit_code=1), told_to_end=START)).report().verdict
    assert (verdict.status, verdict.certainty) == (Status.HEALTHY, Certainty.LIKELY)
    assert verdict.summary == "All 4 ranks went through the same 128 operations until the job was told to end."
