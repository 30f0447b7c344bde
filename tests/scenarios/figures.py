"""The suite's figures as tables: how often each rule is right, who tells a starved job, what promises are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, median_low

from tests.scenarios.judged import Promise
from tests.scenarios.score import (
    GAIN_TOLERANCE,
    Confusion,
    RuleScore,
    Score,
    by_rule,
    middle_error,
    range_error,
)

Rows = list[list[str]]
Table = tuple[str, list[str], Rows]
"""Title, header, rows."""


def tables(score: Score) -> tuple[Table, ...]:
    """All of them."""
    return rules_table(score), _detectors_table(score), _promises_table(score)


def rules_table(score: Score) -> Table:
    """The rules that were asked for first, those that only spoke last."""
    header = [
        "rule",
        "found",
        "of",
        "recall",
        "false",
        "precision",
        "right cause",
        "delay (median)",
        "p95",
        "gone in 60 s",
        "until gone (median)",
        "flips/h",
        "gain error (median)",
        "stray hints",
    ]
    promises = by_rule(score.promises)
    rules = sorted(score.rules.values(), key=lambda one: (not one.hits + one.misses, one.rule))
    return "By rule", header, [_rule_row(rule, promises.get(rule.rule, [])) for rule in rules]


def _rule_row(rule: RuleScore, promises: Sequence[Promise]) -> list[str]:
    return [
        rule.rule + ("" if rule.built else " (not built yet)"),
        str(rule.hits),
        str(rule.hits + rule.misses),
        percent(rule.recall) if rule.built else "-",
        str(rule.false),
        percent(rule.precision),
        f"{rule.right_causes} of {rule.causes}" if rule.causes else "-",
        f"{median(rule.delays):.0f} s" if rule.delays else "-",
        f"{_p95(rule.delays):.0f} s" if rule.delays else "-",
        f"{rule.cleared} of {len(rule.clearings)}" if rule.clearings else "-",
        _after(rule.clearings),
        "-" if rule.flips_per_hour is None else f"{rule.flips_per_hour:.1f}",
        percent(median(map(middle_error, promises))) if promises else "-",
        str(rule.stray) if rule.stray else "-",
    ]


def _detectors_table(score: Score) -> Table:
    title = "Detecting jobs that an ideal loader makes 1.1 times as fast, by gpuwatch and by simpler detectors"
    header = ["detector", "precision", "recall", "found", "false", "missed"]
    return title, header, [_detector_row(one) for one in score.baselines.values()]


def _detector_row(one: Confusion) -> list[str]:
    said, starved = one.hits + one.false, one.hits + one.misses
    return [
        one.name,
        percent(one.hits / said if said else None),
        percent(one.hits / starved if starved else None),
        str(one.hits),
        str(one.false),
        str(one.misses),
    ]


def _promises_table(score: Score) -> Table:
    header = [
        "rule",
        "findings",
        "real gain in range",
        "middle within 15%",
        "median promise",
        "median width",
        "median real gain",
        "worst case",
    ]
    rows = [_promises_row(rule, found) for rule, found in by_rule(score.promises).items()]
    return "Promised gains compared with the simulated fix", header, rows


def _promises_row(rule: str, found: Sequence[Promise]) -> list[str]:
    worst = max(found, key=middle_error)
    return [
        rule,
        str(len(found)),
        str(sum(range_error(one) == 0.0 for one in found)),
        str(within(list(map(middle_error, found)))),
        f"{median(one.low for one in found):.2f}-{median(one.high for one in found):.2f}x",
        f"{median(one.high / one.low for one in found):.2f}",
        f"{median(one.real for one in found):.2f}x",
        f"{worst.low:.2f}-{worst.high:.2f}x promised, {worst.real:.2f}x real",
    ]


def within(errors: Sequence[float]) -> int:
    """How many are no larger than a gain may be off."""
    return sum(error <= GAIN_TOLERANCE for error in errors)


def percent(value: float | None) -> str:
    """Whole percents; a dash where nothing was counted."""
    return "-" if value is None else f"{100.0 * value:.0f}%"


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, round(0.95 * (len(values) - 1)))]


def _after(clearings: Sequence[float | None]) -> str:
    """The median of how long findings outlived their cause; those that were still there lasted longest."""
    if not clearings:
        return "-"
    middle = median_low([math.inf if one is None else one for one in clearings])
    return "stays" if math.isinf(middle) else f"{middle:.0f} s"
