"""Reads a report's JSON, of any version with the parts that are compared, into a measured run."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import msgspec

from gpuwatch.compare.measured import GIB, CannotCompareError, Measured, Stood, Subject, by_rule, mean, times

_STOOD = ("firing", "clearing", "over")


class _Swing(msgspec.Struct):
    mean: float
    sigma: float


class _Level(msgspec.Struct):
    mean: float
    max: float


class _Gpu(msgspec.Struct):
    uuid: str
    name: str
    utilization_percent: _Swing | None = None
    train_utilization_percent: _Swing | None = None
    power_watts: _Level | None = None
    memory_bytes: _Level | None = None
    energy_joules: float | None = None


class _Steps(msgspec.Struct):
    p50: float
    p95: float


class _Loader(msgspec.Struct):
    role: str = "unknown"
    batch_size: int | None = None


class _Model(msgspec.Struct):
    parameters: int | None = None
    parameter_bits: int | None = None
    autocast: str | None = None


class _Run(msgspec.Struct):
    id: str
    title: str
    pid: int
    gpus: list[str] = []
    steps: int | None = None
    step_seconds: _Steps | None = None
    samples_per_second: float | None = None
    data_wait_share: float | None = None
    wait_seconds_per_batch: float | None = None
    train_seconds: float | None = None
    batch_size: int | None = None
    model: _Model = msgspec.field(default_factory=_Model)
    loaders: list[_Loader] = []
    torch: str | None = None
    command: str | None = None
    device: str | None = None


class _Finding(msgspec.Struct):
    rule: str
    severity: str
    state: str = "firing"
    stood_seconds: float | None = None
    run: str | None = None
    gpu: str | None = None


class _About(msgspec.Struct):
    label: str = ""
    duration_seconds: float = 0.0
    incomplete: bool = False
    source: str = "live"


class _Report(msgspec.Struct):
    schema_version: int
    gpuwatch: _About
    gpus: list[_Gpu] = []
    runs: list[_Run] = []
    findings: list[_Finding] = []


def measured_report(name: str, data: bytes) -> Measured:
    """The run of a report with the most steps, its GPUs and findings.

    Raises:
        CannotCompareError: it is no report.
    """
    try:
        report = msgspec.json.decode(data, type=_Report)
    except msgspec.MsgspecError as error:
        raise CannotCompareError(
            f"{name} is neither a recording nor a report's JSON ({error}): "
            "make one with `gpuwatch record` or `gpuwatch report --format json`"
        ) from None
    run = max(report.runs, key=lambda each: each.steps or 0, default=None)
    used = set(run.gpus) if run else set()
    on_cpu = run is not None and run.device == "cpu"
    gpus = [gpu for gpu in report.gpus if gpu.uuid in used or not (used or on_cpu)]
    notes = ["it was cut short: this is what was seen so far"] if report.gpuwatch.incomplete else []
    if run is None:
        notes.append("no training run is in it")
    elif len(report.runs) > 1:
        notes.append(f"of {len(report.runs)} runs, {run.title} ({run.pid}) made the most steps and is compared")
    return Measured(
        name=name,
        label=report.gpuwatch.label,
        seconds=report.gpuwatch.duration_seconds,
        subject=_subject(run, gpus),
        values={**_gpu_values(gpus), **(_run_values(run, gpus) if run else {})},
        findings=by_rule(
            Stood(finding.rule, finding.severity, finding.stood_seconds)
            for finding in report.findings
            if finding.state in _STOOD
            and finding.run in (None, run.id if run else None)
            and (finding.gpu is None or not used or finding.gpu in used)
        ),
        notes=tuple(notes),
    )


def _subject(run: _Run | None, gpus: list[_Gpu]) -> Subject:
    names = tuple(sorted(gpu.name for gpu in gpus))
    if run is None:
        return Subject(gpu_names=names)
    sizes = [loader.batch_size for loader in run.loaders if loader.role == "train"]
    return Subject(
        title=run.title,
        gpu_names=names or (("CPU",) if run.device == "cpu" else ()),
        batch_size=run.batch_size or (sizes[0] if len(sizes) == 1 else None),
        model_parameters=run.model.parameters,
        parameter_bits=run.model.parameter_bits,
        autocast=run.model.autocast,
        torch=run.torch,
        command=run.command,
    )


def _gpu_values(gpus: list[_Gpu]) -> dict[str, float | None]:
    swings = [gpu.train_utilization_percent or gpu.utilization_percent for gpu in gpus]
    return {
        "utilization_percent": mean([swing.mean for swing in swings if swing]),
        "utilization_sigma": mean([swing.sigma for swing in swings if swing]),
        "power_watts": mean([gpu.power_watts.mean for gpu in gpus if gpu.power_watts]),
        "memory_peak_gib": mean([gpu.memory_bytes.max / GIB for gpu in gpus if gpu.memory_bytes]),
    }


def _run_values(run: _Run, gpus: list[_Gpu]) -> dict[str, Any]:
    energies = [gpu.energy_joules for gpu in gpus if gpu.energy_joules is not None]
    trained = (run.samples_per_second or 0.0) * (run.train_seconds or 0.0)
    is_whole = len(energies) == len(gpus) and trained > 0
    return {
        "samples_per_second": run.samples_per_second,
        "wait_ms_per_batch": times(run.wait_seconds_per_batch, 1e3),
        "wait_share_percent": times(run.data_wait_share, 100),
        "step_p50_ms": run.step_seconds.p50 * 1e3 if run.step_seconds else None,
        "step_p95_ms": run.step_seconds.p95 * 1e3 if run.step_seconds else None,
        "energy_joules_per_sample": fmean(energies) * len(energies) / trained if is_whole and energies else None,
    }
