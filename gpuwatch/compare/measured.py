"""One measured run as a comparison sees it: what it was, its figures, and what was found wrong with it.

It comes from a recording, or from the JSON of a report.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TypeVar

import msgspec

from gpuwatch.recording.stretch import FindingSummary, GpuSummary, Level, RunSummary, SessionSummary
from gpuwatch.report.model import Finding, Gpu, Memory, Report, Run

_GIB = 1024**3
_SEVERITIES = ("critical", "warning", "info", "hint")


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
    findings = _findings(summary.findings, run.id if run else None, used)
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
    findings = _findings([each for each in report.findings if each.state != "pending"], run.id if run else None, used)
    about = report.gpuwatch
    return Measured(name, about.label, about.duration_seconds, subject, values, findings, tuple(notes))


def severity_order(severity: str) -> int:
    """The worst first, unknown ones last."""
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)


_Compared = TypeVar("_Compared", RunSummary, Run)


def _longest(runs: Iterable[_Compared]) -> _Compared | None:
    return max(runs, key=lambda run: run.train_seconds or 0.0, default=None)


def _findings(
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
