"""`--fail-if`: what a change must not do, and whether it did."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpuwatch.compare.comparison import BY_NAME, Change, Comparison, Metric
from gpuwatch.compare.measured import CannotCompareError
from gpuwatch.compare.wording import percent, quantity
from gpuwatch.statistics.interval import CONFIDENCE, holm
from gpuwatch.text.nearest import did_you_mean

_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*([+-]?\d+(?:\.\d+)?)\s*(%?)\s*")
_EXAMPLES = "'samples_per_second<-3%' (a change) or 'utilization_percent<85' (the value after it)"


@dataclass(frozen=True, slots=True)
class Gate:
    """One `--fail-if`. With a percent sign `limit` is a relative change (-0.03), else the value on the after side."""

    text: str
    metric: Metric
    below: bool
    inclusive: bool
    limit: float
    relative: bool

    def is_crossed_by(self, value: float) -> bool:
        """Whether the value lies where it must not."""
        if self.inclusive and value == self.limit:
            return True
        return value < self.limit if self.below else value > self.limit


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a gate. "unknown": one of its figures is not known."""

    gate: Gate
    outcome: Literal["passed", "failed", "unknown"]
    sentence: str


def parse_gate(text: str) -> Gate:
    """The gate of one `--fail-if`.

    Raises:
        CannotCompareError: it is none, or there is no such metric.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise CannotCompareError(f"--fail-if {text!r} is not METRIC<NUMBER or METRIC>NUMBER, such as {_EXAMPLES}")
    name, sign, number, is_percent = found.groups()
    metric = BY_NAME.get(name)
    if metric is None:
        guess = did_you_mean(name, BY_NAME)
        raise CannotCompareError(f"unknown metric {name!r} in --fail-if{guess}; there are: {', '.join(BY_NAME)}")
    if number.startswith("-") and not is_percent:
        raise CannotCompareError(
            f"--fail-if {text!r} asks for a negative {name}, which there is none; a change is written with %, "
            f"such as {_EXAMPLES}"
        )
    limit = float(number) / (100 if is_percent else 1)
    return Gate(text.strip(), metric, sign[0] == "<", sign.endswith("="), limit, bool(is_percent))


def judge(comparison: Comparison, gates: Sequence[Gate]) -> list[Judgement]:
    """Each gate's outcome. Where runs scatter, a change that may be chance crosses no gate that no change would pass.

    Several such gates are several chances to be wrong: their p-values are held to Holm's correction.
    """
    asked = [gate for gate in gates if _is_tested(gate, comparison.change(gate.metric.name))]
    p_values = [interval.p_value for gate in asked if (interval := comparison.change(gate.metric.name).interval)]
    adjusted = dict(zip(asked, holm(p_values), strict=True))
    return [_judgement(comparison, gate, adjusted.get(gate), len(asked)) for gate in gates]


def _is_tested(gate: Gate, change: Change) -> bool:
    """A gate that a change of nothing already crosses asks for an improvement: there the measured change decides."""
    return gate.relative and change.interval is not None and not gate.is_crossed_by(0.0)


def _judgement(comparison: Comparison, gate: Gate, p_value: float | None, tested: int) -> Judgement:
    change = comparison.change(gate.metric.name)
    name = gate.metric.name
    if change.withheld and gate.relative:
        differences = "; ".join(comparison.likeness.differences)
        return Judgement(gate, "unknown", f"{name} cannot be compared for --fail-if {gate.text}: {differences}")
    value = _relative(change) if gate.relative else change.after
    if value is None:
        return Judgement(
            gate, "unknown", f"{name} is not known on both sides, so --fail-if {gate.text} decides nothing"
        )
    seen = _seen(change, gate)
    crossed = gate.is_crossed_by(value)
    if p_value is not None and crossed and p_value >= 1 - CONFIDENCE:
        among = f" among {tested} gates" if tested > 1 else ""
        return Judgement(
            gate, "passed", f"{seen}, which may be chance (p = {p_value:.2g}{among}): {gate.text} is not proven"
        )
    sentence = f"{seen}: {gate.text} is {'true' if crossed else 'not true'}"
    if comparison.is_anecdote and gate.relative:
        sentence += " (of one run on a side: an anecdote, not proof)"
    elif p_value is not None and crossed:
        sentence += f" (p = {p_value:.2g}{f' among {tested} gates' if tested > 1 else ''})"
    return Judgement(gate, "failed" if crossed else "passed", sentence)


def _relative(change: Change) -> float | None:
    """The change as a share of what it was; from nothing, something is more than any share."""
    if change.ratio is not None:
        return change.ratio - 1
    if change.before is None or change.after is None:
        return None
    return math.inf if change.after > change.before else 0.0


def _seen(change: Change, gate: Gate) -> str:
    name = change.metric.name
    after = quantity(change.after, change.metric)
    if not gate.relative:
        return f"{name} is {after}"
    if change.ratio is None:
        return f"{name} changed from {quantity(change.before, change.metric)} to {after}"
    return f"{name} changed by {percent(change.ratio)}, from {quantity(change.before, change.metric)} to {after}"
