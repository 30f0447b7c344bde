from __future__ import annotations

import math
import random
import statistics

import pytest

from gpuwatch.timeline.times import clipped, covered_ns, outside, total_ns, united, without
from gpuwatch.timeline.windows import LogHistogram, stats

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


def test_span_arithmetic() -> None:
    assert united([(5, 8), (1, 3), (2, 4)]) == [(1, 4), (5, 8)]
    assert clipped([(0, 4), (5, 9), (10, 12)], 2, 6) == [(2, 4), (5, 6)]
    assert without([(0, 10)], [(2, 3), (5, 12)]) == [(0, 2), (3, 5)]
    assert without([(4, 4), (5, 8)], [(6, 6)]) == [(5, 6), (6, 8)]
    assert total_ns([(0, 2), (3, 5)]) == 4
    assert covered_ns([(5, 8), (1, 3), (2, 4)], 2, 7) == 4
    assert outside([1, 2, 3, 4, 5], [(1, 3), (4, 4)]) == [0, 2, 3, 4]
