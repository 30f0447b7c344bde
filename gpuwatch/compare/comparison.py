"""Two sides of measured runs: what each holds, whether they are alike, each metric on both, findings, and `--fail-if`.

A side is read from a recording's summary or a report's JSON. In words, what is not known is "-", never 0.
"""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, TypeVar

import msgspec

from gpuwatch.numbers import grouped
from gpuwatch.recording.stretch import FindingSummary, GpuSummary, Level, RunSummary, SessionSummary
from gpuwatch.report.model import Finding, Gpu, Memory, Report, Run
from gpuwatch.statistics import CONFIDENCE, Interval, detectable_effect, geometric_mean, holm, log_ratio_interval
from gpuwatch.text import did_you_mean

_GIB = 1024**3
_SEVERITIES = ("critical", "warning", "info", "hint")

Verdict = Literal["better", "worse", "changed", "no detectable change"]
Fate = Literal["gone", "new", "still"]


class CannotCompareError(Exception):
    """One sentence with cause and cure."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What makes two runs alike, or not. None: not known."""

    title: str | None = None
    gpu_names: tuple[str, ...] = ()
    batch_size: int | None = None
    model_parameters: int | None = None
    parameter_bits: int | None = None
    autocast: str | None = None  # "" where it was off
    torch: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredFinding:
    """A finding and how long it lasted, None where a report does not say."""

    rule: str
    severity: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """One recording or report. `values` are by the names of `METRICS`; what is missing in it is not known."""

    name: str
    label: str
    seconds: float
    subject: Subject
    values: Mapping[str, float | None] = field(default_factory=dict)
    findings: tuple[MeasuredFinding, ...] = ()
    notes: tuple[str, ...] = ()


def measured(name: str, summary: SessionSummary) -> Measured:
    """The run of a recording that trained longest, with its GPUs and findings."""
    run = _longest(summary.runs)
    used = set(run.gpu_uuids) if run else set()
    on_cpu = run is not None and run.facts.device == "cpu"
    gpus = [gpu for gpu in summary.gpus if gpu.facts.uuid in used or not (used or on_cpu)]
    notes = [] if summary.problem is None else [summary.problem]
    if not summary.ended:
        notes.append("it is still being written or was cut off: this is what it holds so far")
    if run is None:
        notes.append("no training run is in it")
    elif len(summary.runs) > 1:
        notes.append(f"of {len(summary.runs)} runs, {run.title} ({run.facts.pid}) trained longest and is compared")
    subject = Subject(gpu_names=tuple(sorted(gpu.facts.name for gpu in gpus)) or (("CPU",) if on_cpu else ()))
    values = _gpu_values(gpus, [gpu.memory_used_bytes for gpu in gpus])
    if run is not None:
        subject = replace(
            subject,
            title=run.title,
            batch_size=run.batch_size,
            model_parameters=run.model_parameters,
            parameter_bits=run.parameter_bits,
            autocast=run.autocast,
            torch=run.facts.torch,
            command=shlex.join(run.facts.command),
        )
        values |= {
            "samples_per_second": run.samples_per_second,
            "wait_ms_per_batch": _times(run.wait_seconds_per_batch, 1e3),
            "wait_share_percent": _times(run.wait_share, 100),
            "step_p50_ms": _times(run.step_p50_seconds, 1e3),
            "step_p95_ms": _times(run.step_p95_seconds, 1e3),
            "energy_joules_per_sample": run.energy_joules_per_sample,
        }
    findings = _measured_findings(summary.findings, run.id if run else None, used)
    return Measured(name, summary.label, summary.seconds, subject, values, findings, tuple(notes))


def measured_report(name: str, data: bytes) -> Measured:
    """The run of a report that trained longest, with its GPUs and findings.

    Raises:
        CannotCompareError: it is no report.
    """
    try:
        report = msgspec.json.decode(data, type=Report)
    except msgspec.MsgspecError as error:
        raise CannotCompareError(
            f"{name} is neither a recording nor a report's JSON of this version ({error}): "
            "make one with `gpuwatch record` or `gpuwatch report --format json`"
        ) from None
    run = _longest(report.runs)
    used = set(run.gpus) if run else set()
    on_cpu = run is not None and run.device == "cpu"
    gpus = [gpu for gpu in report.gpus if gpu.uuid in used or not (used or on_cpu)]
    notes = ["it was cut short: this is what was seen so far"] if report.gpuwatch.incomplete else []
    if run is None:
        notes.append("no training run is in it")
    elif len(report.runs) > 1:
        notes.append(f"of {len(report.runs)} runs, {run.title} ({run.pid}) trained longest and is compared")
    subject = Subject(gpu_names=tuple(sorted(gpu.name for gpu in gpus)) or (("CPU",) if on_cpu else ()))
    values = _gpu_values(gpus, [gpu.memory_bytes for gpu in gpus])
    if run is not None:
        subject = replace(
            subject,
            title=run.title,
            batch_size=run.batch_size,
            model_parameters=run.model.parameters,
            parameter_bits=run.model.parameter_bits,
            autocast=run.model.autocast,
            torch=run.torch,
            command=run.command,
        )
        values |= {
            "samples_per_second": run.samples_per_second,
            "wait_ms_per_batch": _times(run.wait_seconds_per_batch, 1e3),
            "wait_share_percent": _times(run.data_wait_share, 100),
            "step_p50_ms": run.step_seconds.p50 * 1e3 if run.step_seconds else None,
            "step_p95_ms": run.step_seconds.p95 * 1e3 if run.step_seconds else None,
            "energy_joules_per_sample": run.energy_joules_per_sample,
        }
    findings = _measured_findings(
        [each for each in report.findings if each.state != "pending"], run.id if run else None, used
    )
    about = report.gpuwatch
    return Measured(name, about.label, about.duration_seconds, subject, values, findings, tuple(notes))


def severity_order(severity: str) -> int:
    """The worst first, unknown ones last."""
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


_Compared = TypeVar("_Compared", RunSummary, Run)


def _longest(runs: Iterable[_Compared]) -> _Compared | None:
    return max(runs, key=lambda run: run.train_seconds or 0.0, default=None)


def _measured_findings(
    found: Iterable[FindingSummary | Finding], run: str | None, used: Collection[str]
) -> tuple[MeasuredFinding, ...]:
    """Those of this run and its GPUs; one for each rule, of however many GPUs: the worst, and the longest."""
    rules: dict[str, MeasuredFinding] = {}
    for each in found:
        if each.run not in (None, run) or (each.gpu is not None and used and each.gpu not in used):
            continue
        before = rules.get(each.rule, MeasuredFinding(each.rule, each.severity))
        known = [seconds for seconds in (before.seconds, each.stood_seconds) if seconds is not None]
        severity = min(before.severity, each.severity, key=severity_order)
        rules[each.rule] = MeasuredFinding(each.rule, severity, max(known, default=None))
    return tuple(rules.values())


def _gpu_values(gpus: Sequence[GpuSummary | Gpu], memories: Sequence[Level | Memory | None]) -> dict[str, float | None]:
    """Means over the GPUs; utilization while training, where that is known."""
    swings = [gpu.train_utilization_percent or gpu.utilization_percent for gpu in gpus]
    return {
        "utilization_percent": _mean([swing.mean for swing in swings if swing]),
        "utilization_sigma": _mean([swing.sigma for swing in swings if swing]),
        "power_watts": _mean([gpu.power_watts.mean for gpu in gpus if gpu.power_watts]),
        "memory_peak_gib": _mean([memory.max / _GIB for memory in memories if memory]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


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

    `detectable` is the relative change that this many runs, scattered like these, would have shown.
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
        [f"not known for every run, so not checked: {', '.join(unknown)}"] if (unknown := _unknown(subjects)) else []
    )
    for what, read in _NAMED:
        seen = list(dict.fromkeys(text for subject in subjects if (text := read(subject)) is not None))
        if len(seen) > 1:
            notes.append(f"{what} differs: {_listed(before, read)} before, {_listed(after, read)} after")
    if any(_SIMULATED.search(each.label) for each in (*before, *after)):
        notes.append("simulated: these numbers are not from a real machine")
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


_NAMED: tuple[tuple[str, _Read], ...] = (
    ("autocast", _autocast),
    ("torch", lambda subject: subject.torch),
    ("the script", lambda subject: subject.title),
)


def _unknown(subjects: Sequence[Subject]) -> list[str]:
    return [what for what, read in _SAME if any(read(subject) is None for subject in subjects)]


def _listed(side: Sequence[Measured], read: _Read) -> str:
    return " and ".join(dict.fromkeys(read(each.subject) or "not known" for each in side))


UNKNOWN = "-"


def number(value: float | None) -> str:
    """Three digits that mean something, thousands apart, no exponent: "12,345", "98.4", "0.0123"."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 100:
        return grouped(value)
    if size >= 1 or size == 0:
        return f"{value:.1f}" if size >= 10 or size == 0 else f"{value:.2f}"
    return f"{value:.3g}" if size >= 1e-4 else f"{value:.1e}"


def quantity(value: float | None, metric: Metric) -> str:
    """The number with its unit."""
    return number(value) if value is None or not metric.unit else f"{number(value)} {metric.unit}"


def percent(ratio: float) -> str:
    """A factor as a change: "+18.4%"."""
    change = (ratio - 1) * 100
    return f"{'+' if change > 0 else ''}{grouped(change)}%" if abs(change) >= 99.95 else f"{signed(change)}%"


def signed(value: float) -> str:
    """With one decimal, and never as "-0.0"."""
    return f"{round(value, 1) + 0.0:+.1f}"


_GATE_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*([+-]?\d+(?:\.\d+)?)\s*(%?)\s*")


_GATE_EXAMPLES = "'samples_per_second<-3%' (a change) or 'utilization_percent<85' (the value after it)"


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
    found = _GATE_FORM.fullmatch(text)
    if found is None:
        raise CannotCompareError(f"--fail-if {text!r} is not METRIC<NUMBER or METRIC>NUMBER, such as {_GATE_EXAMPLES}")
    name, sign, number, is_percent = found.groups()
    metric = BY_NAME.get(name)
    if metric is None:
        guess = did_you_mean(name, BY_NAME)
        raise CannotCompareError(f"unknown metric {name!r} in --fail-if{guess}; there are: {', '.join(BY_NAME)}")
    if number.startswith("-") and not is_percent:
        raise CannotCompareError(
            f"--fail-if {text!r} asks for a negative {name}, which does not exist; a change is written with %, "
            f"such as {_GATE_EXAMPLES}"
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
            gate, "unknown", f"{name} is not known on both sides, so --fail-if {gate.text} cannot be decided"
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
        sentence += " (single run per side: not significant)"
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
