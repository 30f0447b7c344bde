from __future__ import annotations

import pytest

from gpuwatch.samples import BatchCount
from gpuwatch.timeline.stacks import BatchCounts, Counted
from tests.unit.sample_builder import at, count, counts


def counted(*readings: BatchCount) -> BatchCounts:
    made = BatchCounts()
    for each in readings:
        made.add(each)
    return made


def between(made: BatchCounts, start: float, end: float, looks: tuple[float, float] | None = None) -> Counted:
    first, last = looks or (start, end)
    found = made.between(at(start), at(end), (at(first), at(last)))
    assert found is not None
    return found


def test_rate_is_the_growth_between_the_first_and_the_last_reading() -> None:
    made = counted(*counts(100, 7.5))
    assert between(made, 40, 100).per_second == pytest.approx(7.5, rel=0.005)
    assert between(made, 40.7, 99.2).per_second == pytest.approx(7.5, rel=0.01)
    assert made.total == 750


def test_readings_that_come_unevenly_do_not_shift_the_rate() -> None:
    moments = [0.0, 0.4, 3.1, 3.2, 5.9, 8.0, 9.7]
    made = counted(*(count(moment, round(moment * 80)) for moment in moments))
    assert between(made, -1, 10).per_second == pytest.approx(80, rel=0.005)


def test_slow_batches_are_counted_over_the_whole_stretch() -> None:
    made = counted(*(count(second, second // 10) for second in range(301)))
    assert between(made, 0, 300).per_second == pytest.approx(0.1, rel=0.04)


def test_evaluation_adds_time_and_no_batches() -> None:
    training = [count(second, second * 10) for second in range(31)]
    evaluating = [count(30 + second, second * 50, loader=2, role="eval") for second in range(1, 31)]
    made = counted(*training, *evaluating)
    assert between(made, 0, 60).per_second == pytest.approx(5, rel=0.02)
    assert between(made, 0, 60).batches == 290
    assert made.train_loader == 1
    assert made.last_growth_ns == at(30)


def test_pause_without_readings_counts_as_time_where_the_thread_was_looked_at() -> None:
    made = counted(*counts(30, 10))
    assert between(made, 0, 60, looks=(0, 60)).per_second == pytest.approx(5, rel=0.05)
    assert between(made, 0, 60, looks=(0, 30)).per_second == pytest.approx(10, rel=0.02)
    made.add(count(90, 300))
    assert between(made, 35, 95, looks=(35, 95)).per_second == 0.0


def test_first_reading_is_not_growth_of_the_time_before_it() -> None:
    made = counted(*(count(10 + second, 40 + second * 10) for second in range(31)))
    assert between(made, 0, 40).per_second == pytest.approx(10)
    assert made.total == 340


def test_new_loader_every_epoch_goes_on_where_the_old_one_ended() -> None:
    made = BatchCounts()
    for epoch in range(6):
        for second in range(10):
            made.add(count(epoch * 10 + second, second * 10 + 10, loader=epoch, epochs=1))
    assert made.total == 600
    assert between(made, -1, 59).per_second == pytest.approx(10, rel=0.02)
    assert between(made, -1, 59).epochs == 5


def test_watch_that_started_over_adds_to_what_it_was() -> None:
    made = counted(*counts(10, 10), *(count(20 + second, second * 10) for second in range(11)))
    assert made.total == 200
    assert between(made, 20, 30).per_second == pytest.approx(10, rel=0.01)


def test_late_reading_changes_nothing() -> None:
    made = counted(*counts(10, 10))
    assert made.add(count(5, 50)) is None
    assert (made.total, made.last_growth_ns) == (100, at(10))


def test_loader_of_unknown_use_counts_until_one_is_known_to_train() -> None:
    made = counted(*counts(10, 10, role="unknown"))
    assert made.total == 100
    made.add(count(11, 1, loader=2))
    assert (made.total, made.train_loader) == (1, 2)


def test_evaluation_alone_is_no_training() -> None:
    made = counted(*counts(10, 10, role="eval"))
    assert made.between(at(0), at(10), (at(0), at(10))) is None
    assert (made.total, made.last_growth_ns) == (0, None)


def test_estimate_among_the_readings_is_said() -> None:
    made = counted(*counts(10, 10))
    assert between(made, 0, 10).exact
    made.add(count(11, 110, exact=False))
    assert not between(made, 0, 11).exact


def test_usual_batch_leaves_an_evaluation_out() -> None:
    made = counted(
        *(count(second, second // 4) for second in range(81)), *(count(200 + n, 20 + n // 4) for n in range(81))
    )
    assert sorted(made.usual)[len(made.usual) // 2] == pytest.approx(4.0)


def test_loaders_and_readings_are_bounded_and_the_total_is_not_lost() -> None:
    made = BatchCounts()
    for loader in range(10_000):
        made.add(count(loader, 0, loader=loader))
        made.add(count(loader + 0.5, 3, loader=loader))
    assert made.total == 30_000
    assert len(made._loaders) <= 64
    for second in range(20_000):
        made.add(count(20_000 + second, second, loader=1))
    assert len(made._loaders[1].rows) <= 1_100
