from __future__ import annotations

import math
import random
import statistics

import pytest

from gpuwatch.timeline.autocorrelation import autocorrelation, autocorrelations, detrended, dominant_period
from gpuwatch.timeline.stats import LogHistogram, stats

NAN = math.nan


def test_figures_agree_with_the_standard_library() -> None:
    values = [random.Random(1).gauss(50, 10) for _ in range(1_000)]
    figures = stats(values)
    assert figures is not None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert figures.mean == pytest.approx(statistics.fmean(values))
    assert figures.sigma == pytest.approx(statistics.stdev(values))
    assert (figures.p5, figures.p50, figures.p95) == pytest.approx((cuts[4], cuts[49], cuts[94]))


def test_unknown_values_are_left_out() -> None:
    figures = stats([NAN, 1.0, NAN, 3.0])
    assert figures is not None
    assert (figures.count, figures.mean) == (2, 2.0)


def test_one_value_has_no_spread_and_none_has_no_figures() -> None:
    figures = stats([7.0])
    assert figures is not None
    assert (figures.sigma, figures.p5, figures.p95) == (0.0, 7.0, 7.0)
    assert stats([NAN]) is None


def test_histogram_quantiles_are_within_one_percent() -> None:
    generator = random.Random(2)
    values = [generator.lognormvariate(-2, 1) for _ in range(20_000)]
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    cuts = statistics.quantiles(values, n=100)
    for percent in (5, 50, 99):
        assert histogram.quantile(percent / 100) == pytest.approx(cuts[percent - 1], rel=0.02)


def test_histogram_takes_values_beyond_its_ends_and_none() -> None:
    histogram = LogHistogram()
    assert histogram.quantile(0.5) is None
    histogram.add(0.0)
    histogram.add(1e9)
    assert histogram.count == 2


def test_every_fourth_late_batch_shows_at_lag_four_only() -> None:
    waits = [0.3 if number % 4 == 0 else 0.0 for number in range(200)]
    comb, between = autocorrelation(waits, 4), autocorrelation(waits, 3)
    assert comb is not None and comb > 0.9
    assert between is not None and between < 0


def test_single_slow_samples_do_not_look_like_a_comb() -> None:
    generator = random.Random(3)
    waits = [1.0 if generator.random() < 0.02 else 0.0 for _ in range(500)]
    found = autocorrelation(waits, 4)
    assert found is not None and abs(found) < 0.3


def test_flat_or_short_series_tell_nothing() -> None:
    assert autocorrelation([1.0] * 50, 4) is None
    assert autocorrelation([1.0, 2.0], 4) is None
    assert autocorrelations([1.0] * 50, 10) == []


def test_unknown_values_do_not_break_the_comb() -> None:
    waits = [NAN if number % 50 == 7 else 0.3 if number % 4 == 0 else 0.0 for number in range(200)]
    found = autocorrelation(waits, 4)
    assert found is not None and found > 0.8


def test_period_of_regular_dips_is_found_on_a_drift() -> None:
    values = [90 - number / 10 - (40 if number % 12 < 2 else 0) for number in range(240)]
    assert dominant_period(values, 60) == 12


def test_noise_has_no_period() -> None:
    generator = random.Random(4)
    assert dominant_period([generator.gauss(90, 5) for _ in range(240)], 60) is None


def test_detrending_leaves_no_slope() -> None:
    assert detrended([2.0 * number for number in range(10)]) == pytest.approx([0.0] * 10, abs=1e-9)
