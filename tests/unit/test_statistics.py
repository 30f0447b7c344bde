"""What is said of the difference between two sets of runs, compared with SciPy's own tests and a known truth."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest

# SciPy is imported where it is compared with: at the top each process that collects tests would, 0.9 s of a core.
from gpuwatch.statistics import (
    detectable_effect,
    geometric_mean,
    holm,
    log_ratio_interval,
    student_t_quantile,
    two_sided_p_value,
)

_BEFORE = [412.0, 405.5, 418.2, 409.9, 411.1]
_AFTER = [488.0, 479.4, 492.9, 485.0, 490.7]


def test_the_interval_is_that_of_welchs_test_on_logarithms() -> None:
    from scipy import stats

    interval = log_ratio_interval(_BEFORE, _AFTER)
    expected = stats.ttest_ind([math.log(v) for v in _AFTER], [math.log(v) for v in _BEFORE], equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert interval is not None
    assert interval.ratio == pytest.approx(geometric_mean(_AFTER) / geometric_mean(_BEFORE))
    assert (interval.low, interval.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert interval.p_value == pytest.approx(expected.pvalue)
    assert (interval.runs_before, interval.runs_after, interval.spans_no_change) == (5, 5, False)


_FREEDOMS = (1.0, 1.3, 2.0, 2.7, 4.0, 5.5, 8.0001, 30.0, 99.5, 1e3, 1e4)


@pytest.mark.parametrize("freedom", _FREEDOMS)
def test_student_t_is_scipys(freedom: float) -> None:
    from scipy import special

    for t in (0.0, 1e-4, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 50.0, 1000.0):
        for signed in (t, -t):
            assert two_sided_p_value(signed, freedom) == pytest.approx(2 * special.stdtr(freedom, -t), rel=1e-10)
    for probability in (0.5, 0.6, 0.8, 0.9, 0.975, 0.995, 0.9999, 1 - 1e-9):
        expected = special.stdtrit(freedom, probability)
        assert student_t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_an_interval_needs_neither_scipy_nor_numpy() -> None:
    script = (
        "import sys\n"
        "sys.modules['scipy'] = sys.modules['numpy'] = sys.modules['mpmath'] = None\n"
        "from gpuwatch.statistics import detectable_effect, log_ratio_interval\n"
        "print(log_ratio_interval([4.0, 4.1], [5.0, 5.2]).low, detectable_effect([4.0, 4.1], [5.0, 5.2]))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    low, effect = map(float, output.split())
    assert 0 < low < 5.1 / 4.05 and 0 < effect < 1


@pytest.mark.parametrize(
    ("before", "after"), [([400.0], [500.0, 510.0]), ([400.0, 401.0], [0.0, 3.0]), ([], []), ([1.0, math.nan], [1, 2])]
)
def test_no_interval_without_two_runs_a_side_that_have_a_logarithm(before: list[float], after: list[float]) -> None:
    assert log_ratio_interval(before, after) is None
    assert detectable_effect(before, after) is None


def test_runs_that_do_not_scatter_differ_or_do_not() -> None:
    same = log_ratio_interval([5.0, 5.0], [5.0, 5.0])
    other = log_ratio_interval([5.0, 5.0], [6.0, 6.0])
    assert same is not None and other is not None
    assert same.spans_no_change and same.p_value == 1
    assert not other.spans_no_change and (other.low, other.high, other.p_value) == pytest.approx((1.2, 1.2, 0.0))


def _called(change: float, scatter: float, experiments: int, seed: int) -> int:
    """Of this many experiments with five runs a side, those that call a difference."""
    draw = random.Random(seed)
    calls = 0
    for _ in range(experiments):
        before = [400 * math.exp(draw.gauss(0, scatter)) for _ in range(5)]
        after = [400 * (1 + change) * math.exp(draw.gauss(0, scatter)) for _ in range(5)]
        interval = log_ratio_interval(before, after)
        assert interval is not None
        calls += not interval.spans_no_change
    return calls


def test_a_program_against_itself_differs_in_about_one_of_twenty() -> None:
    assert _called(0.0, 0.01, 1000, seed=3) <= 65


def test_a_detectable_change_is_seen_about_as_often_as_promised() -> None:
    draw = random.Random(11)
    sizes = [
        detectable_effect(
            [math.exp(draw.gauss(0, 0.01)) for _ in range(5)], [math.exp(draw.gauss(0, 0.01)) for _ in range(5)]
        )
        or 0.0
        for _ in range(200)
    ]
    typical = sorted(sizes)[100]
    assert 0.72 <= _called(typical, 0.01, 1000, seed=4) / 1000 <= 0.88


def test_holm_is_as_published() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_geometric_mean_of_what_has_none_is_not_known() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None
    assert geometric_mean([1.0, 0.0]) is None
