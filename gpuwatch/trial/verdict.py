"""From the speeds of runs to words: faster, slower, or what could have been seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from gpuwatch.statistics.interval import CONFIDENCE, detectable_effect, geometric_mean, holm, log_ratio_interval
from gpuwatch.trial.results import Judgement

MIN_EFFECT = 0.02
_DRIFT_STEPS_OF_ERROR = 3.0


def judge(
    before: Sequence[float], others: Sequence[Sequence[float]], min_effect: float = MIN_EFFECT
) -> list[Judgement]:
    """Each set of speeds against the first one.

    A difference is called where Welch's test over run means finds it among all comparisons of the trial (Holm) and
    it is at least `min_effect`. Steps of one run are never compared: they are not independent (a test over them calls
    a difference between a program and itself in 42 to 82 of 100 trials).
    """
    intervals = [log_ratio_interval(before, after) for after in others]
    asked = [each for each in intervals if each is not None]
    adjusted = iter(holm([each.p_value for each in asked]))
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(asked))
    judgements = []
    for after, interval in zip(others, intervals, strict=True):
        if interval is None:
            ratio = _ratio(before, after)
            judgements.append(Judgement("-" if ratio is None else "anecdote", ratio))
            continue
        detectable = detectable_effect(before, after, confidence)
        if next(adjusted) >= 1 - CONFIDENCE:
            judgements.append(Judgement("no detectable change", interval.ratio, interval, detectable))
        elif abs(math.log(interval.ratio)) < math.log1p(min_effect):
            judgements.append(Judgement("too small to matter", interval.ratio, interval, detectable))
        elif interval.ratio > 1:
            judgements.append(Judgement("faster", interval.ratio, interval, detectable))
        else:
            judgements.append(Judgement("slower", interval.ratio, interval, detectable))
    return judgements


def _ratio(before: Sequence[float], after: Sequence[float]) -> float | None:
    first, second = geometric_mean(before), geometric_mean(after)
    return None if first is None or second is None else second / first


def scatter(rates: Sequence[float]) -> float | None:
    """From run to run, as a share of the mean; None for a single run."""
    return stdev(rates) / fmean(rates) if len(rates) > 1 else None


def drift(arms: Sequence[Sequence[tuple[int, float]]]) -> float | None:
    """How much the speed changed from the first run to the last, whatever the arm: -0.08 for 8 % slower.

    Each arm is a sequence of (place of the run, speed). None where no drift stands out of the scatter. Taking turns
    keeps a drift out of the ratios, but it widens their intervals.
    """
    points: list[tuple[float, float]] = []
    for runs in arms:
        if len(runs) > 1:
            usual = fmean(math.log(rate) for _, rate in runs)
            middle = fmean(place for place, _ in runs)
            points += [(place - middle, math.log(rate) - usual) for place, rate in runs]
    spread = sum(place**2 for place, _ in points)
    freedom = len(points) - sum(len(runs) > 1 for runs in arms) - 1
    if spread == 0 or freedom < 1:
        return None
    slope = sum(place * rest for place, rest in points) / spread
    error = math.sqrt(sum((rest - slope * place) ** 2 for place, rest in points) / freedom / spread)
    if abs(slope) <= _DRIFT_STEPS_OF_ERROR * error:
        return None
    places = [place for runs in arms for place, _ in runs]
    return math.expm1(slope * (max(places) - min(places)))
