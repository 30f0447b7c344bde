"""Builds observations for report tests from the scenes of scene_builder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuwatch.diagnosis.finding import CallEdit, Finding, Fix, Gain, Level, Measure, RuledOut, Severity
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.report.build import build_report
from gpuwatch.report.model import Json, Report, as_json
from gpuwatch.report.observation import Observation
from gpuwatch.samples import NvmlState
from gpuwatch.timeline.charts import Chart, Series
from gpuwatch.timeline.windows import Scene
from tests.unit import scene_builder as build

WALL_TIME = 1_770_000_000.0  # 2026-02-02T02:40:00Z


def starvation(**fields: Any) -> Finding:
    """A data-starvation finding of the run 4711.1 with an edit of train.py:88."""
    usual: dict[str, Any] = {
        "rule": "data-starvation",
        "severity": Severity.CRITICAL,
        "level": Level.E3,
        "summary": "the GPU idles 41% of the time waiting for data",
        "evidence": (Measure("gap_share", 0.41, "GPU idle 41% of 60 s (512 steps)"),),
        "state": "firing",
        "since_ns": build.START_NS + 90 * build.SECOND,
        "run": "4711.1",
        "window_seconds": 60.0,
        "fix": Fix(
            text="load with 10 workers",
            code="DataLoader(..., num_workers=10)",
            file=build.SCRIPT,
            line=88,
            value=10,
            edit=CallEdit("DataLoader", build.SCRIPT, 88, {"num_workers": "10"}),
        ),
        "gain": Gain(1.5, 1.7, "then the GPU"),
        "ruled_out": (RuledOut("slow-samples", "all steps wait alike"),),
        "verify": "gpuwatch trial num_workers=10 -- python train.py",
    }
    return Finding(**(usual | fields))


def observation(
    scene: Scene | None = None,
    findings: Iterable[Finding] = (),
    *,
    origin: Origin | None = None,
    nvml: NvmlState | None = None,
    **fields: Any,
) -> Observation:
    """One session of 120 s over this scene."""
    seen = scene or build.scene(build.run(build.rank()))
    snapshot = Snapshot(
        time_ns=seen.now_ns,
        wall_time=WALL_TIME,
        started_ns=seen.started_ns,
        origin=origin or Origin("live", "LIVE"),
        machine=seen.machine,
        nvml=nvml,
        host=seen.host.latest if seen.host else None,
        gpus=(),
        runs=(),
        findings=tuple(findings),
        scene=seen,
        candidates=seen.candidates,
    )
    return Observation(snapshot=snapshot, scene=seen, **fields)


def report(scene: Scene | None = None, findings: Iterable[Finding] = (), **fields: Any) -> Report:
    """The report of that session."""
    return build_report(observation(scene, findings, **fields))


def json_report(scene: Scene | None = None, findings: Iterable[Finding] = (), **fields: Any) -> Json:
    """The same as the objects that JSON has."""
    return as_json(report(scene, findings, **fields))


def chart(name: str, key: str, *values: float | None) -> Chart:
    """A chart of 2 s buckets."""
    end = build.START_NS + 2 * len(values) * build.SECOND
    return Chart(Series(name, key), build.START_NS, end, values, values, values)  # type: ignore[arg-type]
