"""Two sides of measured runs: whether they are alike, each metric on both, and what became of the findings."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuwatch.compare.measured import Measured, Subject, severity_order
from gpuwatch.statistics.interval import Interval, detectable_effect, geometric_mean, log_ratio_interval
from gpuwatch.text.numbers import grouped

Verdict = Literal["better", "worse", "changed", "no detectable change"]
Fate = Literal["gone", "new", "still"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a run. `better` is the sign of a welcome change, 0 where neither is.

    A metric that is `by_itself` can be compared between any two runs. The others mean something else for another
    model, batch size or GPU: half the batch makes half the step.
    """

    name: str
    label: str
    unit: str
    better: Literal[-1, 0, 1]
    by_itself: bool = False

    @property
    def is_share(self) -> bool:
        """Whether a difference is given in points: of percentages, a percentage misleads."""
        return self.unit == "%" or self.unit == "points"


METRICS = (
    Metric("samples_per_second", "samples/s", "", 1, by_itself=True),
    Metric("utilization_percent", "GPU utilization, mean", "%", 1),
    Metric("utilization_sigma", "GPU utilization, sigma", "points", -1),
    Metric("wait_ms_per_batch", "wait for data, per batch", "ms", -1),
    Metric("wait_share_percent", "wait for data, share of training", "%", -1),
    Metric("step_p50_ms", "step, median", "ms", -1),
    Metric("step_p95_ms", "step, 95th percentile", "ms", -1),
    Metric("power_watts", "power per GPU, mean", "W", 0),
    Metric("memory_peak_gib", "memory per GPU, peak", "GiB", 0),
    Metric("energy_joules_per_sample", "energy per sample", "J", -1),
)
"""In the order of the table."""

BY_NAME = {metric.name: metric for metric in METRICS}
HEADLINE = METRICS[0]


@dataclass(frozen=True, slots=True)
class Likeness:
    """`differences` leave only samples/s comparable; `notes` are what else a reader must know."""

    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def alike(self) -> bool:
        """Whether every figure may be compared."""
        return not self.differences


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
    """A rule's finding, in how many runs of each side it was there, and for how long at most."""

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


def likeness(before: Sequence[Measured], after: Sequence[Measured]) -> Likeness:
    """What differs between the runs of both sides, or within one of them."""
    subjects = [each.subject for each in (*before, *after)]
    differences = []
    for what, read in _SAME:
        seen = list(dict.fromkeys(text for subject in subjects if (text := read(subject)) is not None))
        if len(seen) > 1:
            differences.append(f"different {what}: {_listed(before, read)} before, {_listed(after, read)} after")
    notes = (
        [f"not known of every run, and so not checked: {', '.join(unknown)}"] if (unknown := _unknown(subjects)) else []
    )
    for what, read in _TOLD:
        seen = list(dict.fromkeys(text for subject in subjects if (text := read(subject)) is not None))
        if len(seen) > 1:
            notes.append(f"{what} differs: {_listed(before, read)} before, {_listed(after, read)} after")
    if any(_SIMULATED.search(each.label) for each in (*before, *after)):
        notes.append("simulated: these numbers are of no machine")
    return Likeness(tuple(differences), tuple(notes))


def _model(subject: Subject) -> str | None:
    if subject.model_parameters is None:
        return None
    bits = "" if subject.parameter_bits is None else f" of {subject.parameter_bits} bits"
    return f"{grouped(subject.model_parameters)} parameters{bits}"


def _batch_size(subject: Subject) -> str | None:
    return None if subject.batch_size is None else str(subject.batch_size)


def gpus_in_words(subject: Subject) -> str | None:
    """The names with their numbers: "8 x NVIDIA H200"."""
    names = subject.gpu_names
    if not names:
        return None
    counts = {name: names.count(name) for name in names}
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def _autocast(subject: Subject) -> str | None:
    return None if subject.autocast is None else subject.autocast or "off"


_SIMULATED = re.compile(r"^SIMULATED\b|\(SIMULATED\b")
"""In the label of a made-up machine, or of the report of its recording: "RECORDING a.gpuwatch (SIMULATED starved)"."""

_Read = Callable[[Subject], str | None]
_SAME: tuple[tuple[str, _Read], ...] = (("model", _model), ("batch size", _batch_size), ("GPU", gpus_in_words))
_TOLD: tuple[tuple[str, _Read], ...] = (
    ("autocast", _autocast),
    ("torch", lambda subject: subject.torch),
    ("the script", lambda subject: subject.title),
)


def _unknown(subjects: Sequence[Subject]) -> list[str]:
    return [what for what, read in _SAME if any(read(subject) is None for subject in subjects)]


def _listed(side: Sequence[Measured], read: _Read) -> str:
    return " and ".join(dict.fromkeys(read(each.subject) or "not known" for each in side))
