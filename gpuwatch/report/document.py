"""Builds the report, a JSON document; every renderer shows this and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch._version import __version__
from gpuwatch.diagnosis.wording import seconds
from gpuwatch.report.checklist import checklist
from gpuwatch.report.finding_section import finding_section, iso_time
from gpuwatch.report.gpu_section import gpu_section
from gpuwatch.report.observation import Json, Observation, figure
from gpuwatch.report.rule_section import rule_section
from gpuwatch.report.run_section import run_section
from gpuwatch.report.series_section import clock_section, series_section, span_section
from gpuwatch.report.verdict import verdict
from gpuwatch.text.escape import encodable
from gpuwatch.timeline.series import Chart
from gpuwatch.timeline.wall_times import JUMP_SECONDS

SCHEMA_VERSION = 1


def build_report(seen: Observation, *, with_series: bool = False) -> Json:
    """The whole report; with the curves of its charts only where they are asked for."""
    report = _report(seen)
    if with_series:
        report["series"] = series_section(seen)
        report["clock"] = clock_section(seen)
        report["spans"] = span_section(seen)
    return report


def _report(seen: Observation) -> Json:
    return {
        "schema_version": SCHEMA_VERSION,
        "gpuwatch": _about(seen),
        "verdict": verdict(seen),
        "findings": finding_section(seen),
        "rules": rule_section(seen),
        "checklist": checklist(seen.scene),
        "gpus": gpu_section(seen.scene.gpus),
        "runs": run_section(seen),
        "history": _history(seen.charts),
        "data_quality": _data_quality(seen),
        "host": _host(seen),
    }


def _about(seen: Observation) -> Json:
    snapshot = seen.snapshot
    return {
        "version": __version__,
        "source": snapshot.origin.kind,
        "label": encodable(snapshot.origin.label),
        "started_at": iso_time(snapshot.wall_time_at(snapshot.started_ns)),
        "ended_at": iso_time(snapshot.wall_time),
        "duration_seconds": figure((snapshot.time_ns - snapshot.started_ns) / 1e9),
        "incomplete": seen.interrupted,
        "notes": [encodable(note) for note in seen.notes],
    }


def _host(seen: Observation) -> Json:
    machine, scene_host, nvml = seen.snapshot.machine, seen.scene.host, seen.snapshot.nvml
    latest = seen.snapshot.host
    return {
        "hostname": encodable(machine.hostname if machine else seen.hostname) or None,
        "kernel": machine.kernel if machine else None,
        "cpu_model": encodable(machine.cpu_model) if machine and machine.cpu_model else None,
        "cpu_count": machine.cpu_count if machine else None,
        "cpu_quota_cores": figure(machine.cpu_quota_cores) if machine else None,
        "memory_total_bytes": machine.memory_total_bytes if machine else None,
        "memory_available_bytes": latest.memory_available_bytes if latest else None,
        "container": machine.container if machine else None,
        "wsl": machine.wsl if machine else None,
        "cpu_percent": figure(scene_host.cpu_percent) if scene_host else None,
        "pressure_cpu_percent": figure(scene_host.pressure_cpu_percent) if scene_host else None,
        "pressure_io_percent": figure(scene_host.pressure_io_percent) if scene_host else None,
        "pressure_memory_percent": figure(scene_host.pressure_memory_percent) if scene_host else None,
        "driver_version": nvml.driver_version if nvml else None,
        "cuda_version": nvml.cuda_version if nvml else None,
    }


def _history(charts: Sequence[Chart]) -> list[Json]:
    return [
        {
            "series": chart.series.name,
            "key": chart.series.key,
            "bucket_seconds": figure((chart.end_ns - chart.start_ns) / 1e9 / max(1, len(chart.mean))),
            "mean": [figure(value) for value in chart.mean],
        }
        for chart in charts
    ]


def _clock_jump(seen: Observation) -> tuple[str, ...]:
    jump = seen.clock_jump_seconds
    if abs(jump) <= JUMP_SECONDS:
        return ()
    return (
        f"the machine's clock jumped {seconds(abs(jump))} {'ahead' if jump > 0 else 'back'} (it was set, or the "
        "machine slept): times of day are as it showed them, durations leave the jump out",
    )


def _data_quality(seen: Observation) -> Json:
    quality = seen.scene.quality
    nvml = quality.nvml or seen.snapshot.nvml
    judged = seen.snapshot.scene
    return {
        "problems": [encodable(problem) for problem in (*seen.problems, *_clock_jump(seen))],
        "window_seconds": figure(seen.scene.window_seconds),
        "findings_window_seconds": figure(judged.window_seconds) if judged else None,
        "poll_interval_seconds": figure(quality.poll_interval_seconds),
        "gpu_samples": quality.gpu_samples,
        "poll_gap_p95_seconds": figure(quality.poll_gap_p95_seconds),
        "longest_gap_seconds": figure(quality.longest_gap_seconds),
        "received_records": quality.received_records,
        "dropped_records": quality.dropped_records,
        "malformed_packets": quality.malformed_packets,
        "nvml": None
        if nvml is None
        else {
            "status": nvml.status,
            "reason": nvml.reason,
            "missed_polls": nvml.missed_polls,
            "restarts": nvml.restarts,
        },
        "nvml_calls_per_gpu_second": figure(quality.nvml_calls_per_gpu_second),
        "own_cpu_share": figure(quality.own_cpu_share),
    }
