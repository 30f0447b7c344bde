"""Builds the report, a JSON document; every renderer shows this and nothing else.

The curves of a page with charts are no part of the report that everybody reads: 1 500 points of least, mean and
greatest for each of 50 curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gpuwatch._version import __version__
from gpuwatch.metrics import BY_SERIES
from gpuwatch.numbers import seconds
from gpuwatch.report import model
from gpuwatch.report.findings import finding_section, iso_time, rule_section
from gpuwatch.report.observation import Observation, Stretch
from gpuwatch.report.runs import run_section
from gpuwatch.report.verdict import verdict
from gpuwatch.report.words import short_gpu_name
from gpuwatch.text import encodable
from gpuwatch.timeline.charts import Chart
from gpuwatch.timeline.wall_times import JUMP_SECONDS
from gpuwatch.timeline.windows import GpuWindow, RankWindow, Scene, Stats

_NOT_REPORTED = "not reported by the driver"
_SAMPLED_AS = {
    "utilization_percent": "utilization_percent",
    "power_watts": "power_watts",
    "memory_bytes": "memory_used_bytes",
    "temperature_celsius": "temperature_celsius",
    "sm_clock_mhz": "sm_clock_mhz",
    "energy_joules": "energy_joules",
}
"""Key of the report -> field of the sample under which a device gives its reason."""
_FORMAT = "%.4g "
_NAN = math.nan


def build_report(seen: Observation, *, with_series: bool = False) -> model.Report:
    """The whole report; with the curves of its charts only where they are asked for."""
    report: model.Report = model.cleaned(
        model.Report(
            schema_version=model.SCHEMA_VERSION,
            gpuwatch=_about(seen),
            verdict=verdict(seen),
            findings=finding_section(seen),
            rules=rule_section(seen),
            checklist=checklist(seen.scene),
            gpus=[_gpu(gpu) for gpu in seen.scene.gpus],
            runs=run_section(seen),
            history=_history(seen.charts),
            data_quality=_data_quality(seen),
            host=_host(seen),
        )
    )
    if not with_series:
        return report
    return msgspec.structs.replace(
        report,
        series=[_curve(seen, chart) for chart in seen.curves],
        clock=_clock(seen),
        spans=[_span(seen, each) for each in seen.stretches],
    )


def _about(seen: Observation) -> model.About:
    snapshot = seen.snapshot
    return model.About(
        version=__version__,
        source=snapshot.origin.kind,
        label=snapshot.origin.label,
        started_at=iso_time(snapshot.wall_time_at(snapshot.started_ns)),
        ended_at=iso_time(snapshot.wall_time),
        duration_seconds=(snapshot.time_ns - snapshot.started_ns) / 1e9,
        incomplete=seen.interrupted,
        notes=list(seen.notes),
    )


def _host(seen: Observation) -> model.Host:
    machine, scene_host, nvml = seen.snapshot.machine, seen.scene.host, seen.snapshot.nvml
    latest = seen.snapshot.host
    return model.Host(
        hostname=(machine.hostname if machine else seen.hostname) or None,
        kernel=machine.kernel if machine else None,
        cpu_model=(machine.cpu_model or None) if machine else None,
        cpu_count=machine.cpu_count if machine else None,
        cpu_quota_cores=machine.cpu_quota_cores if machine else None,
        memory_total_bytes=machine.memory_total_bytes if machine else None,
        memory_available_bytes=latest.memory_available_bytes if latest else None,
        container=machine.container if machine else None,
        wsl=machine.wsl if machine else None,
        cpu_percent=scene_host.cpu_percent if scene_host else None,
        pressure_cpu_percent=scene_host.pressure_cpu_percent if scene_host else None,
        pressure_io_percent=scene_host.pressure_io_percent if scene_host else None,
        pressure_memory_percent=scene_host.pressure_memory_percent if scene_host else None,
        driver_version=nvml.driver_version if nvml else None,
        cuda_version=nvml.cuda_version if nvml else None,
    )


def _history(charts: Sequence[Chart]) -> list[model.History]:
    return [
        model.History(
            series=chart.series.name,
            key=chart.series.key,
            bucket_seconds=(chart.end_ns - chart.start_ns) / 1e9 / max(1, len(chart.mean)),
            mean=list(chart.mean),
        )
        for chart in charts
    ]


def _clock_jump(seen: Observation) -> tuple[str, ...]:
    jump = seen.clock_jump_seconds
    if abs(jump) <= JUMP_SECONDS:
        return ()
    return (
        f"the machine's clock jumped {seconds(abs(jump))} {'ahead' if jump > 0 else 'back'} (it was set, or the "
        "machine slept): times of day are as the clock showed them; durations leave out the jump",
    )


def _data_quality(seen: Observation) -> model.DataQuality:
    quality = seen.scene.quality
    nvml = quality.nvml or seen.snapshot.nvml
    judged = seen.snapshot.scene
    return model.DataQuality(
        problems=[*seen.problems, *_clock_jump(seen)],
        window_seconds=seen.scene.window_seconds,
        findings_window_seconds=judged.window_seconds if judged else None,
        poll_interval_seconds=quality.poll_interval_seconds,
        gpu_samples=quality.gpu_samples,
        poll_gap_p95_seconds=quality.poll_gap_p95_seconds,
        longest_gap_seconds=quality.longest_gap_seconds,
        received_records=quality.received_records,
        dropped_records=quality.dropped_records,
        malformed_packets=quality.malformed_packets,
        nvml=None if nvml is None else model.like(model.Nvml, nvml),
        nvml_calls_per_gpu_second=quality.nvml_calls_per_gpu_second,
        own_cpu_share=quality.own_cpu_share,
    )


def _gpu(gpu: GpuWindow) -> model.Gpu:
    power, memory = _level(gpu.power_watts), _level(gpu.memory_used_bytes)
    limit, total = gpu.power_limit_watts, gpu.facts.memory_total_bytes
    section = model.Gpu(
        index=gpu.facts.index,
        uuid=gpu.facts.uuid,
        name=gpu.facts.name,
        status=gpu.status,
        status_reason=gpu.status_reason,
        utilization_percent=_swing(gpu.utilization),
        train_utilization_percent=_swing(gpu.train_utilization),
        power_watts=None if power is None else model.Power(power.mean, power.max, limit),
        memory_bytes=None if memory is None else model.Memory(memory.mean, memory.max, total),
        temperature_celsius=_level(gpu.temperature_celsius),
        sm_clock_mhz=_level(gpu.sm_clock_mhz),
        energy_joules=model.figure(gpu.energy_joules),
        throttled_share=dict(gpu.throttle_shares),
        sensor_window_seconds=gpu.sensor_window_seconds,
        unavailable={},
    )
    for name, field in _SAMPLED_AS.items():
        if getattr(section, name) is None:
            section.unavailable[name] = gpu.unavailable.get(field, "not measured in this window")
    if power is not None and limit is None:
        section.unavailable["power_watts.limit"] = gpu.unavailable.get("power_limit_watts", _NOT_REPORTED)
    if memory is not None and total is None:
        section.unavailable["memory_bytes.total"] = gpu.unavailable.get("memory_total_bytes", _NOT_REPORTED)
    return section


def _swing(stats: Stats | None) -> model.Swing | None:
    return None if stats is None else model.like(model.Swing, stats)


def _level(stats: Stats | None) -> model.Level | None:
    return None if stats is None else model.like(model.Level, stats)


@dataclass(frozen=True, slots=True)
class _Value:
    """A measured value, or None; `where` names the GPU that decides."""

    value: float | None
    where: str | None = None
    incomplete: bool = False
    """Some GPU could not answer: the others may fail the target, but they cannot meet it alone."""


def checklist(scene: Scene) -> list[model.Target]:
    """The targets. Of several GPUs the worst decides; GPUs that no run uses do not count while others are used."""
    used = {uuid for run in scene.runs for uuid in run.gpu_uuids}
    gpus = [gpu for gpu in scene.gpus if not used or gpu.facts.uuid in used]
    ranks = [rank for run in scene.runs for rank in run.ranks]
    busy = _of_gpus(gpus, lambda gpu: gpu.utilization.mean if gpu.utilization else None, min)
    swing = _of_gpus(gpus, lambda gpu: gpu.utilization.sigma if gpu.utilization else None, max)
    heat = _of_gpus(gpus, lambda gpu: gpu.temperature_celsius.max if gpu.temperature_celsius else None, max)
    cpu = _Value(scene.host.cpu_percent if scene.host else None)
    return [
        _target("mean utilization >= 85 %", "%", busy, lambda value: value >= 85),
        _target("fluctuation (sigma of utilization) < 10 points", "points", swing, lambda value: value < 10),
        _target("CPU <= 90 %", "%", cpu, lambda value: value <= 90),
        _target("temperature < 85 °C", "°C", heat, lambda value: value < 85),
        _target("no out-of-memory error", "errors", _out_of_memory(ranks), lambda value: value == 0),
    ]


def _of_gpus(
    gpus: Sequence[GpuWindow],
    read: Callable[[GpuWindow], float | None],
    worst: Callable[[list[tuple[float, int]]], tuple[float, int]],
) -> _Value:
    values = [(value, gpu.facts.index) for gpu in gpus if (value := read(gpu)) is not None]
    if not values:
        return _Value(None)
    value, index = worst(values)
    return _Value(value, f"GPU {index}" if len(gpus) > 1 else None, incomplete=len(values) < len(gpus))


def _out_of_memory(ranks: Sequence[RankWindow]) -> _Value:
    counts = [
        rank.memory.out_of_memory for rank in ranks if rank.memory is not None and rank.memory.out_of_memory is not None
    ]
    return _Value(float(sum(counts)) if counts else None, incomplete=len(counts) < len(ranks))


def _target(text: str, unit: str, measured: _Value, meets: Callable[[float], bool]) -> model.Target:
    status: model.TargetStatus
    if measured.value is None:
        status = "not known"
    elif not meets(measured.value):
        status = "not met"
    else:
        status = "not known" if measured.incomplete else "met"
    return model.Target(
        target=text,
        status=status,
        value=measured.value,
        unit=unit,
        where=measured.where,
    )


def _clock(seen: Observation) -> list[model.WallTime]:
    """What the clock on the wall showed at the beginning, and behind each of its jumps."""
    snapshot = seen.snapshot
    start_ns, end_ns = snapshot.started_ns, snapshot.time_ns
    jumps = [anchor for anchor in snapshot.wall_anchors if start_ns < anchor[0] <= end_ns]
    return [
        model.WallTime(_seconds(seen, time_ns), round(wall_time, 3))
        for time_ns, wall_time in ((start_ns, snapshot.wall_time_at(start_ns)), *jumps)
    ]


def _curve(seen: Observation, chart: Chart) -> model.Curve:
    mean, least, greatest = map(_short, (chart.mean, chart.min, chart.max))
    return model.Curve(
        series=chart.series.name,
        key=chart.series.key,
        subject=_subject(seen, chart.series.key),
        unit=BY_SERIES[chart.series.name].unit,
        start_seconds=_seconds(seen, chart.start_ns),
        bucket_seconds=round((chart.end_ns - chart.start_ns) / 1e9 / max(1, len(chart.mean)), 6),
        mean=mean,
        min=None if least == mean else least,
        max=None if greatest == mean else greatest,  # all of it is the mean: buckets of one value
    )


def _subject(seen: Observation, key: str) -> str:
    for gpu in seen.scene.gpus:
        if gpu.facts.uuid == key:
            return f"GPU {gpu.facts.index} {short_gpu_name(encodable(gpu.facts.name))}"
    for run in seen.scene.runs:
        if run.id == key:
            return encodable(f"{run.title} ({run.critical.facts.pid})")
    return "host"


def _short(values: Sequence[float | None]) -> list[float | None]:
    """To four digits, all of them at once: a page has 300 000 values, and mostly all of a curve's are known."""
    if None in values:
        values = [_NAN if value is None else value for value in values]
    text = _FORMAT * len(values) % tuple(values)
    rounded = map(float, text.split())
    return [None if value != value else value for value in rounded] if "nan" in text else list(rounded)


def _seconds(seen: Observation, time_ns: int) -> float:
    return round((time_ns - seen.zero_ns) / 1e9, 3)


def _span(seen: Observation, each: Stretch) -> model.Span:
    return model.Span(
        kind=each.kind,
        name=each.name,
        run=each.run,
        gpu=each.gpu,
        severity=each.severity.value if each.severity else None,
        series=list(each.series),
        start_seconds=_seconds(seen, each.start_ns),
        end_seconds=_seconds(seen, each.end_ns),
    )
