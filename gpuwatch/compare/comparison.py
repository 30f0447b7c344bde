"""Both sides of a comparison, metric by metric, and what became of the findings."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuwatch.compare.likeness import Likeness, likeness
from gpuwatch.compare.measured import Measured, severity_order
from gpuwatch.compare.metrics import METRICS, Metric
from gpuwatch.statistics.interval import Interval, detectable_effect, geometric_mean, log_ratio_interval

Verdict = Literal["better", "worse", "changed", "no detectable change"]
Fate = Literal["gone", "new", "still"]


@dataclass(frozen=True, slots=True)
class Change:
    """One metric on both sides. `ratio` is after/before; an interval takes two runs a side in which it is known.

    `detectable` is the relative change that so many runs, scattered like these, would have shown.
    `withheld`: it is known, but would be compared with what it is not like.
    """

    metric: Metric
    before: float | None
    after: float | None
    ratio: float | None = None
    interval: Interval | None = None
    detectable: float | None = None
    withheld: bool = False
    values_before: tuple[float, ...] = ()
    values_after: tuple[float, ...] = ()

    @property
    def difference(self) -> float | None:
        """After less before, in the metric's unit."""
        return None if self.before is None or self.after is None or self.withheld else self.after - self.before

    @property
    def verdict(self) -> Verdict | None:
        """What several runs a side prove; None where they cannot."""
        if self.interval is None:
            return None
        if self.interval.spans_no_change:
            return "no detectable change"
        if not self.metric.better:
            return "changed"
        return "better" if (self.interval.ratio > 1) == (self.metric.better > 0) else "worse"


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A rule's finding, in how many runs of each side it stood, and for how long at most."""

    rule: str
    severity: str
    fate: Fate
    runs_before: int
    runs_after: int
    seconds_before: float | None
    seconds_after: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that can be said of two sides."""

    before: tuple[Measured, ...]
    after: tuple[Measured, ...]
    likeness: Likeness
    changes: tuple[Change, ...]
    findings: tuple[FindingChange, ...]

    @property
    def is_anecdote(self) -> bool:
        """Whether one run stands on a side: then how far runs scatter is unknown."""
        return min(len(self.before), len(self.after)) < 2

    def change(self, name: str) -> Change:
        """The change of one metric."""
        return next(change for change in self.changes if change.metric.name == name)


def compare(before: Sequence[Measured], after: Sequence[Measured]) -> Comparison:
    """Holds two sides of one or more runs each against each other."""
    like = likeness(before, after)
    return Comparison(
        before=tuple(before),
        after=tuple(after),
        likeness=like,
        changes=tuple(_change(metric, before, after, alike=like.alike) for metric in METRICS),
        findings=tuple(_findings(before, after)),
    )


def _change(metric: Metric, before: Sequence[Measured], after: Sequence[Measured], *, alike: bool) -> Change:
    first, second = _values(before, metric.name), _values(after, metric.name)
    middle_before, middle_after = _middles(first, second)
    if not alike and not metric.by_itself:
        return Change(metric, middle_before, middle_after, withheld=True, values_before=first, values_after=second)
    has_ratio = middle_before is not None and middle_after is not None and middle_before > 0
    return Change(
        metric=metric,
        before=middle_before,
        after=middle_after,
        ratio=middle_after / middle_before if has_ratio and middle_before and middle_after is not None else None,
        interval=log_ratio_interval(first, second),
        detectable=detectable_effect(first, second),
        values_before=first,
        values_after=second,
    )


def _values(side: Sequence[Measured], name: str) -> tuple[float, ...]:
    return tuple(value for each in side if (value := each.values.get(name)) is not None)


def _middles(before: Sequence[float], after: Sequence[float]) -> tuple[float | None, float | None]:
    """Geometric means, so that a ratio of two is what the interval is about; plain ones where a side has a zero."""
    geometric = [_middle(values, geometric_mean) for values in (before, after)]
    if any(values and middle is None for values, middle in zip((before, after), geometric, strict=True)):
        return _middle(before, statistics.fmean), _middle(after, statistics.fmean)
    return geometric[0], geometric[1]


def _middle(values: Sequence[float], mean: Callable[[Sequence[float]], float | None]) -> float | None:
    if not values:
        return None
    return values[0] if len(set(values)) == 1 and values[0] > 0 else mean(values)


def _findings(before: Sequence[Measured], after: Sequence[Measured]) -> list[FindingChange]:
    rules = dict.fromkeys(found.rule for each in (*before, *after) for found in each.findings)
    changes = []
    for rule in rules:
        first, second = (
            [found for each in side for found in each.findings if found.rule == rule] for side in (before, after)
        )
        fate: Fate = "still" if first and second else "gone" if first else "new"
        severities = [found.severity for found in (second or first)]
        changes.append(
            FindingChange(
                rule=rule,
                severity=min(severities, key=severity_order),
                fate=fate,
                runs_before=len(first),
                runs_after=len(second),
                seconds_before=max((found.seconds for found in first if found.seconds is not None), default=None),
                seconds_after=max((found.seconds for found in second if found.seconds is not None), default=None),
            )
        )
    return sorted(changes, key=lambda change: (_FATES.index(change.fate), severity_order(change.severity), change.rule))


_FATES: tuple[Fate, ...] = ("new", "still", "gone")
