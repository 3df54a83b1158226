from desync.journal.reader import Pulse
from desync.watch.pace import Pace


def pulses(*records: int) -> dict[int, Pulse]:
    return {rank: Pulse(count, count, None, 0, 0) for rank, count in enumerate(records)}


def look(pace: Pace, now: float, cost: float = 0.01, *, suspected: bool = False) -> None:
    pace.looked(now, now + cost, suspected=suspected)


def test_nothing_is_looked_at_before_there_are_ranks() -> None:
    assert not Pace().is_due(100.0, urgent=True)


def test_a_job_that_moves_is_looked_at_now_and_then_and_one_that_stops_soon() -> None:
    pace = Pace()
    pace.take(pulses(1, 1), 0.0)
    look(pace, 0.0)
    for tenth in range(1, 14):
        pace.take(pulses(1 + tenth, 1 + tenth), tenth / 10)
        assert not pace.is_due(tenth / 10, urgent=False)
    assert pace.is_due(1.6, urgent=False), "the backstop"
    look(pace, 1.6)
    for tenth in range(14, 26):
        pace.take(pulses(1 + tenth, min(1 + tenth, 22)), tenth / 10)
        if tenth < 24:
            assert not pace.is_due(tenth / 10, urgent=False)
    assert pace.is_due(2.5, urgent=False), "rank 1 stopped at 2.1 s: the look comes long before the backstop, at 3.1 s"


def test_ordinary_pauses_are_learned_but_never_delay_a_look_beyond_a_second() -> None:
    pace = Pace()
    for step in range(5):
        pace.take(pulses(step), step * 0.5)
    look(pace, 2.0)
    assert not pace.is_due(2.7, urgent=False)
    assert pace.is_due(2.8, urgent=False)
    pace.take(pulses(9), 30.0)
    look(pace, 30.0)
    assert pace.is_due(31.1, urgent=False)


def test_an_expensive_diagnosis_is_made_less_often() -> None:
    pace = Pace()
    pace.take(pulses(1), 0.0)
    look(pace, 5.0, cost=2.0)
    assert not pace.is_due(7.0 + 3.5, urgent=False)
    assert pace.is_due(7.0 + 4.5, urgent=False), "it is quiet"
    pace.take(pulses(2), 30.0)
    look(pace, 30.0, cost=0.2)
    pace.take(pulses(3), 32.5)
    assert not pace.is_due(32.6, urgent=False), "it moves: a diagnosis of 0.2 s is not repeated within 4 s"
    pace.take(pulses(4), 34.3)
    assert pace.is_due(34.4, urgent=False)


def test_an_ended_rank_is_urgent_and_a_suspicion_keeps_looking() -> None:
    pace = Pace()
    pace.take(pulses(1), 0.0)
    look(pace, 0.0)
    pace.take(pulses(2), 0.55)
    assert not pace.is_due(0.6, urgent=False)
    assert pace.is_due(0.6, urgent=True)
    look(pace, 0.6, suspected=True)
    pace.take(pulses(3), 1.15)
    assert pace.is_due(1.2, urgent=False)


def test_silence_is_counted_from_the_last_that_any_rank_recorded() -> None:
    pace = Pace()
    assert pace.silence(5.0) == 0
    pace.take(pulses(1, 1), 5.0)
    pace.take(pulses(1, 2), 7.0)
    pace.take(pulses(1, 2), 9.0)
    assert pace.silence(10.0) == 3.0
