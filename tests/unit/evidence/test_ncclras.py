from __future__ import annotations

import json
from typing import Any

import pytest

from desync.diagnosis.claims import interpret
from desync.evidence.ncclras import combine, parse
from desync.model import Cause, Certainty, Evidence, Finding, Job


def member(rank: int, pid: int, reduces: int) -> dict[str, Any]:
    return {"rank": rank, "host": "10.0.0.1", "pid": pid, "collective_counts": {"Broadcast": 3, "AllReduce": reduces}}


def answer(time: str, *communicators: list[dict[str, Any]], missing: list[dict[str, Any]] | None = None) -> str:
    made = [{"hash": f"0x{number}", "ranks": ranks, "missing_ranks": []} for number, ranks in enumerate(communicators)]
    if missing:
        made[0]["missing_ranks"] = missing
    return json.dumps({"timestamp": time, "nccl_version": "2.28.9", "communicators": made}, indent=1)


def findings(*texts: str) -> tuple[Finding, ...]:
    found = combine([each for text in texts for each in parse(text)])
    evidence = Evidence(job=Job(world_size=found.world_size), traces=found.traces, claims=found.claims, notes=found.notes)
    return tuple(interpret(evidence).findings)


def world(lags: dict[int, int]) -> list[dict[str, Any]]:
    return [member(rank, 100 + rank, 500 - lags.get(rank, 0)) for rank in range(4)]


def test_a_rank_behind_in_two_answers_is_named() -> None:
    (finding,) = findings(answer("1", world({2: 1})), answer("2", world({2: 1})))
    assert (finding.culprit_ranks, finding.certainty) == ((2,), Certainty.POSSIBLE)
    assert finding.divergence is not None
    assert finding.divergence.op == "all_reduce"


def test_one_behind_in_one_answer_is_normal_running() -> None:
    assert findings(answer("1", world({2: 1}))) == ()
    assert findings(answer("1", world({2: 1})), answer("2", world({3: 1}))) == ()
    assert findings(answer("1", world({2: 40})))[0].culprit_ranks == (2,)


def test_who_waits_in_a_smaller_communicator_is_not_the_root() -> None:
    # Ranks 2 and 3 are behind in the large one; there 3 waits for 2 in their own.
    pair = [member(0, 102, 8), member(1, 103, 9)]
    texts = [answer(time, world({2: 1, 3: 1}), pair) for time in ("1", "2")]
    assert findings(*texts)[0].culprit_ranks == (2,)


def test_ranks_that_ras_cannot_ask_are_awaited() -> None:
    gone = {"rank": 3, "host": "10.0.0.2", "pid": 103, "nvml_dev": 3, "unresponsive": True, "considered_dead": False}
    (finding,) = findings(answer("1", world({})[:3], missing=[gone]))
    assert (finding.cause, finding.culprit_ranks) == (Cause.STALLED_RANK, (3,))


def test_the_comma_that_nccl_2_28_forgets_is_put_back() -> None:
    gone = {"rank": 3, "host": "10.0.0.2", "pid": 103, "nvml_dev": 3, "unresponsive": True}
    text = answer("1", world({})[:3], missing=[gone])
    broken = text.replace('"nvml_dev": 3,', '"nvml_dev": 3')
    assert broken != text
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(broken)
    assert findings(broken)[0].culprit_ranks == (3,)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"communicators": 5}', "Error: no answer", '{"communicators": [' + "[" * 5000]
)
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no complete answer"):
        parse(text)


def test_odd_values_are_passed_over() -> None:
    ranks = [{"rank": "x"}, {"rank": -1}, 7, None, {"rank": 1, "collective_counts": {"AllReduce": "many", "x": True}}]
    (found,) = parse(json.dumps({"communicators": [{"ranks": ranks}, "x", {"ranks": 5}]}))
    assert [len(members) for members in found.communicators.values()] == [1, 0]


def test_without_a_communicator_of_all_the_process_is_named_and_no_rank() -> None:
    def replicas(late: int) -> list[list[dict[str, Any]]]:
        # Two copies of the model over four processes each; process 100 + n is rank n of the job.
        return [[member(i, 100 + 2 * i + k, 50 - (2 * i + k == late)) for i in range(4)] for k in range(2)]

    pairs = [[member(i, 100 + 2 * k + i, 70) for i in range(2)] for k in range(4)]
    (finding,) = findings(*(answer(time, *replicas(2), *pairs) for time in ("1", "2")))
    assert finding.culprit_ranks == ()
    assert "process 102 on 10.0.0.1" in finding.summary


@pytest.mark.parametrize(("more", "words"), [(0, "no count has moved"), (5, "counts moved on")])
def test_two_answers_say_whether_anything_was_finished_between_them(more: int, words: str) -> None:
    ahead = dict.fromkeys(range(4), -more)
    answers = [*parse(answer("10:00", world({}))), *parse(answer("10:01", world(ahead)))]
    assert any(words in note and "10:00 and 10:01" in note for note in combine(answers).notes)
