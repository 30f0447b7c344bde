"""What is said of sets of speeds: rarely a difference where there is none, nearly always one where there is."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from gpuwatch.trial.results import drift, judge, scatter

RUN_SIGMA = 0.01
STEPS = 300


def run_mean(random_numbers: random.Random, factor: float = 1.0) -> float:
    """The speed of one simulated run: steps that depend on the one before, a stall now and then, a speed of its own."""
    own = math.exp(random_numbers.gauss(0, RUN_SIGMA))
    rest, seconds = 0.0, []
    for step in range(STEPS):
        rest = 0.8 * rest + random_numbers.gauss(0, 0.05)
        seconds.append(max(0.2, 1 + rest) + (3.0 if step % 37 == 36 else 0.0))
    return factor * own / fmean(seconds)


def called(experiments: int, seed: int, factor: float = 1.0, runs: int = 5, **options: float) -> int:
    """In how many simulated trials a difference is called."""
    random_numbers = random.Random(seed)
    count = 0
    for _ in range(experiments):
        before = [run_mean(random_numbers) for _ in range(runs)]
        after = [run_mean(random_numbers, factor) for _ in range(runs)]
        (judgement,) = judge(before, [after], **options)
        count += judgement.verdict in ("faster", "slower")
    return count


def test_a_program_against_itself_is_rarely_called_different() -> None:
    assert called(100, seed=1) <= 5


def test_without_a_least_effect_the_error_is_what_the_interval_promises() -> None:
    # 5 % of 400 is 20; a binomial of that mean is within 8 and 33 in 99.6 % of all seeds.
    assert 8 <= called(400, seed=2, min_effect=0.0) <= 33


def test_a_gain_of_five_percent_is_seen_in_nearly_every_trial() -> None:
    assert called(50, seed=3, factor=1.05) >= 45


def test_of_many_arms_like_the_first_hardly_any_is_called_different() -> None:
    random_numbers = random.Random(4)
    trials = 0
    for _ in range(40):
        sets = [[run_mean(random_numbers) for _ in range(5)] for _ in range(7)]
        verdicts = {each.verdict for each in judge(sets[0], sets[1:], 0.0)}
        trials += verdicts != {"no detectable change"}
    assert trials <= 6  # each arm by itself would call about one of five trials


def test_words_follow_the_interval() -> None:
    base = [100.0, 101.0, 99.0, 100.5, 99.5]
    quick, slow, same, a_bit = judge(
        base,
        [[150 + each - 100 for each in base], [each * 0.8 for each in base], base, [each * 1.015 for each in base]],
    )
    assert (quick.verdict, slow.verdict, same.verdict) == ("faster", "slower", "no detectable change")
    assert a_bit.verdict in ("too small to matter", "no detectable change")
    assert quick.interval is not None and quick.interval.low < quick.ratio < quick.interval.high  # type: ignore[operator]
    assert same.detectable is not None and 0.01 < same.detectable < 0.05


def test_a_sure_but_small_difference_is_called_too_small() -> None:
    base = [100.0, 100.01, 99.99, 100.02, 99.98]
    (judgement,) = judge(base, [[each * 1.01 for each in base]], 0.02)
    assert judgement.verdict == "too small to matter"


def test_one_run_of_each_is_an_anecdote_whatever_it_shows() -> None:
    (judgement,) = judge([100.0], [[290.0]])
    assert (judgement.verdict, judgement.ratio, judgement.interval) == ("anecdote", pytest.approx(2.9), None)


def test_an_arm_without_runs_says_nothing() -> None:
    assert [each.verdict for each in judge([100.0, 101.0], [[], [100.0, 101.0]])] == ["-", "no detectable change"]
    assert judge([], [[100.0]])[0].ratio is None


def test_a_drift_that_stands_out_of_the_scatter_is_reported() -> None:
    first = [(place, 100.0 * 0.99**place + wobble) for place, wobble in ((0, 0.1), (3, -0.1), (4, 0.1), (7, 0.0))]
    second = [(place, 200.0 * 0.99**place + wobble) for place, wobble in ((1, 0.1), (2, 0.0), (5, -0.2), (6, 0.1))]
    assert drift([first, second]) == pytest.approx(0.99**7 - 1, abs=0.01)
    assert drift([[(0, 100.0), (3, 101.0)], [(1, 201.0), (2, 200.0)]]) is None
    assert drift([[(0, 100.0)], [(1, 200.0)]]) is None


def test_scatter_is_of_the_mean() -> None:
    assert scatter([99.0, 101.0]) == pytest.approx(0.01414, abs=1e-4)
    assert scatter([100.0]) is None
