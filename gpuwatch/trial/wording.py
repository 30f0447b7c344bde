"""A trial's figures as people read them."""

from __future__ import annotations

from gpuwatch.diagnosis.finding import Gain
from gpuwatch.text import numbers
from gpuwatch.trial.results import ArmResult, Failure, Judgement, Metric

_FACTOR_FROM = 1.5
"""A change by so much and more is given as a factor: "+190 %" is harder to read than "2.9x"."""
_HOPELESS = 9.0
"""A change by ten times would have been missed: that is no figure to plan by."""

UNITS: dict[Metric, str] = {"samples_per_second": "samples/s", "steps_per_second": "steps/s"}


def speed(rate: float | None) -> str:
    """Three digits of a speed."""
    return "-" if rate is None else numbers.rate(rate)


def share(part: float | None) -> str:
    """1.2 %."""
    return "-" if part is None else f"{100 * part:.1f} %"


def change(judgement: Judgement) -> str:
    """The change with its interval: "2.90x [2.71, 3.10]" or "+18.4 % [+15.9, +21.0]"."""
    ratio, interval = judgement.ratio, judgement.interval
    if ratio is None:
        return "-"
    as_factor = max(ratio, 1 / ratio) >= _FACTOR_FROM
    ends = "" if interval is None else f" [{_one(interval.low, as_factor)}, {_one(interval.high, as_factor)}]"
    unit = "x" if as_factor else " %"
    return f"{_one(ratio, as_factor)}{unit}{ends}"


def _one(factor: float, as_factor: bool) -> str:
    return f"{factor:.2f}" if as_factor else f"{round(100 * (factor - 1), 1) + 0.0:+.1f}"


def verdict(judgement: Judgement) -> str:
    """The word, with what it leaves open."""
    if judgement.verdict == "no detectable change" and judgement.detectable is not None:
        if judgement.detectable > _HOPELESS:
            return "no detectable change (runs scatter too much to see one: more --runs)"
        return f"no detectable change (could have seen >= {_least(judgement.detectable)})"
    if judgement.verdict == "anecdote":
        return "anecdote, not proof: it takes two runs of each arm for an interval"
    if judgement.verdict == "too small to matter":
        return "differs, by less than --min-effect"
    return judgement.verdict


def _least(part: float) -> str:
    if part >= 1:
        return f"{1 + part:.2g}x: more --runs"
    return f"{100 * part:.1f} %" if part < 0.1 else f"{100 * part:.0f} %"


def predicted(gain: Gain | None) -> str | None:
    """2.4-3.3x."""
    if gain is None:
        return None
    if gain.high >= _FACTOR_FROM:
        low, high = f"{gain.low:.1f}", f"{gain.high:.1f}"
    else:
        low, high = f"{gain.low:.2f}", f"{gain.high:.2f}"
    return f"{low}x" if low == high else f"{low}-{high}x"


def against_prediction(each: ArmResult) -> str | None:
    """Such as "predicted 2.4-3.3x, measured 2.90x [2.71, 3.10]"; None where no rule spoke of the change."""
    said = predicted(each.predicted)
    ratio, interval = each.judgement.ratio, each.judgement.interval
    if said is None or ratio is None:
        return None
    ends = "" if interval is None else f" [{interval.low:.2f}, {interval.high:.2f}]"
    return f"{each.arm.label}: predicted {said} ({each.predicted_by}), measured {ratio:.2f}x{ends}"


def failure(each: Failure) -> str:
    """Why; what it printed last follows."""
    return f"{each.reason}{'; its last lines:' if each.last_lines else ''}"
