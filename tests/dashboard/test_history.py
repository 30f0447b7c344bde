from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.dashboard.panels.charts import Grid, History, held
from gpuwatch.timeline.charts import Series
from tests.dashboard.fake_monitor import SECOND_NS, FakeTimeline, Wave

UTILIZATION = Series("gpu.utilization_percent", "GPU-0")


def timeline(wave: Wave | None = None) -> FakeTimeline:
    return FakeTimeline({"gpu.utilization_percent": wave or (lambda seconds: 50 + 50 * math.sin(seconds / 7))})


def test_the_edges_of_buckets_do_not_move_with_time() -> None:
    first = Grid.ending_at(1_000 * SECOND_NS, 120, 60)
    later = Grid.ending_at(1_001 * SECOND_NS, 120, 60)
    assert first == later
    assert first.start_ns % first.bucket_ns == 0
    assert first.index_of(1_000 * SECOND_NS) == 59


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(8, 90))
def test_what_is_kept_and_what_is_new_together_is_what_asking_for_all_gives(steps: list[int], buckets: int) -> None:
    source = timeline()
    history = History(source)
    now = 10_000
    for step in steps:
        now += step
        grid = Grid.ending_at(now * SECOND_NS, 120, buckets)
        traces = history.refresh(grid, [(UTILIZATION, 0)], now * SECOND_NS)
        assert traces is not None
        whole = timeline().chart(UTILIZATION, grid.start_ns, grid.end_ns, grid.count)
        assert traces[UTILIZATION].mean == pytest.approx(whole.mean)


def test_only_the_newest_buckets_are_asked_for_again() -> None:
    source = timeline()
    history = History(source)
    for second in range(10):
        now_ns = (1_000 + second) * SECOND_NS
        history.refresh(Grid.ending_at(now_ns, 120, 90), [(UTILIZATION, 0)], now_ns)
    assert source.asked[0] == (UTILIZATION, 90)
    assert all(buckets < 12 for _, buckets in source.asked[1:])


def test_late_samples_still_find_their_bucket() -> None:
    known_until = [1_000.0]
    source = timeline(lambda seconds: 80.0 if seconds < known_until[0] else None)
    history = History(source)
    now_ns = 1_000 * SECOND_NS
    history.refresh(Grid.ending_at(now_ns, 60, 60), [(UTILIZATION, 0)], now_ns)
    known_until[0] = 1_003.0
    later_ns = 1_003 * SECOND_NS
    grid = Grid.ending_at(later_ns, 60, 60)
    traces = history.refresh(grid, [(UTILIZATION, 0)], later_ns)
    assert traces is not None
    assert traces[UTILIZATION].mean[-4:-1] == (80.0, 80.0, 80.0)


def test_a_locked_timeline_is_not_waited_for() -> None:
    source = timeline()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with source.lock:
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    try:
        grid = Grid.ending_at(SECOND_NS * 100, 60, 30)
        assert History(source).refresh(grid, [(UTILIZATION, 0)], SECOND_NS * 100) is None
    finally:
        done.set()
        holder.join()


def test_a_reading_holds_until_the_next_one_but_not_over_a_real_gap_or_into_the_future() -> None:
    values = (1.0, None, None, 2.0, None, None, None, 3.0, None)
    assert held(values, 2) == (1.0, 1.0, 1.0, 2.0, None, None, None, 3.0, None)
    assert held(values, 0) == values


def test_series_that_are_no_longer_shown_are_forgotten() -> None:
    source = timeline()
    history = History(source)
    grid = Grid.ending_at(SECOND_NS * 100, 60, 30)
    other = Series("gpu.utilization_percent", "GPU-1")
    history.refresh(grid, [(UTILIZATION, 0), (other, 0)], SECOND_NS * 100)
    history.refresh(grid, [(UTILIZATION, 0)], SECOND_NS * 101)
    source.asked.clear()
    history.refresh(grid, [(UTILIZATION, 0), (other, 0)], SECOND_NS * 102)
    assert (other, 30) in source.asked
