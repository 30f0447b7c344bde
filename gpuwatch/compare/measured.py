"""One measured run as a comparison sees it: what it was, its figures, and what was found wrong with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from gpuwatch.recording.session_summary import GpuSummary, RunSummary, SessionSummary

GIB = 1024**3


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
class Stood:
    """A finding, and for how long it stood, None where a report does not say."""

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
    findings: tuple[Stood, ...] = ()
    notes: tuple[str, ...] = ()


def measured(name: str, summary: SessionSummary) -> Measured:
    """The run of a recording that trained longest, with its GPUs and findings."""
    run = summary.runs[0] if summary.runs else None
    used = set(run.gpu_uuids) if run else set()
    on_cpu = run is not None and run.facts.device == "cpu"
    gpus = [gpu for gpu in summary.gpus if gpu.facts.uuid in used or not (used or on_cpu)]
    stood = by_rule(
        Stood(finding.rule, finding.severity, finding.stood_seconds)
        for finding in summary.findings
        if finding.run in (None, run.id if run else None) and (finding.gpu is None or not used or finding.gpu in used)
    )
    return Measured(
        name=name,
        label=summary.label,
        seconds=summary.seconds,
        subject=_subject(run, gpus),
        values={**_gpu_values(gpus), **(_run_values(run) if run else {})},
        findings=stood,
        notes=tuple(_notes(summary, run)),
    )


def by_rule(found: Iterable[Stood]) -> tuple[Stood, ...]:
    """One for each rule, of however many GPUs and severities: the worst, and the longest."""
    rules: dict[str, Stood] = {}
    for each in found:
        before = rules.get(each.rule, each)
        known = [seconds for seconds in (before.seconds, each.seconds) if seconds is not None]
        severity = min(before.severity, each.severity, key=severity_order)
        rules[each.rule] = Stood(each.rule, severity, max(known, default=None))
    return tuple(rules.values())


def severity_order(severity: str) -> int:
    """The worst first, unknown ones last."""
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


_SEVERITIES = ("critical", "warning", "info", "hint")


def _notes(summary: SessionSummary, run: RunSummary | None) -> list[str]:
    notes = [] if summary.problem is None else [summary.problem]
    if not summary.ended:
        notes.append("it is still being written, or was cut off: this is what it holds so far")
    if run is None:
        notes.append("no training run is in it")
    if run is not None and len(summary.runs) > 1:
        notes.append(f"of {len(summary.runs)} runs, {run.title} ({run.facts.pid}) trained longest and is compared")
    return notes


def _subject(run: RunSummary | None, gpus: Sequence[GpuSummary]) -> Subject:
    names = tuple(sorted(gpu.facts.name for gpu in gpus))
    if run is None:
        return Subject(gpu_names=names)
    return Subject(
        title=run.title,
        gpu_names=names or (("CPU",) if run.facts.device == "cpu" else ()),
        batch_size=run.batch_size,
        model_parameters=run.model_parameters,
        parameter_bits=run.parameter_bits,
        autocast=run.autocast,
        torch=run.facts.torch,
        command=shlex.join(run.facts.command),
    )


def _run_values(run: RunSummary) -> dict[str, float | None]:
    return {
        "samples_per_second": run.samples_per_second,
        "wait_ms_per_batch": times(run.wait_seconds_per_batch, 1e3),
        "wait_share_percent": times(run.wait_share, 100),
        "step_p50_ms": times(run.step_p50_seconds, 1e3),
        "step_p95_ms": times(run.step_p95_seconds, 1e3),
        "energy_joules_per_sample": run.energy_joules_per_sample,
    }


def _gpu_values(gpus: Sequence[GpuSummary]) -> dict[str, float | None]:
    """Means over the GPUs; utilization while training, where that can be told."""
    swings = [gpu.train_utilization_percent or gpu.utilization_percent for gpu in gpus]
    return {
        "utilization_percent": mean([swing.mean for swing in swings if swing]),
        "utilization_sigma": mean([swing.sigma for swing in swings if swing]),
        "power_watts": mean([gpu.power_watts.mean for gpu in gpus if gpu.power_watts]),
        "memory_peak_gib": mean([gpu.memory_used_bytes.max / GIB for gpu in gpus if gpu.memory_used_bytes]),
    }


def mean(values: Sequence[float]) -> float | None:
    """The mean of what is known; None where nothing is."""
    return fmean(values) if values else None


def times(value: float | None, factor: float) -> float | None:
    """The product; None stays None."""
    return None if value is None else value * factor
