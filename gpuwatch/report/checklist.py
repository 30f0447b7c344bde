"""The five targets of a well-used GPU, each met, not met or not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwatch.report.observation import Json, figure
from gpuwatch.timeline.windows import GpuWindow, RankWindow, Scene


@dataclass(frozen=True, slots=True)
class _Value:
    """A measured value, or None; `where` names the GPU that decides."""

    value: float | None
    where: str | None = None
    incomplete: bool = False
    """Some GPU could not answer: the others may fail the target, but they cannot meet it alone."""


def checklist(scene: Scene) -> list[Json]:
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


def _target(text: str, unit: str, measured: _Value, meets: Callable[[float], bool]) -> Json:
    if measured.value is None:
        status = "not known"
    elif not meets(measured.value):
        status = "not met"
    else:
        status = "not known" if measured.incomplete else "met"
    return {
        "target": text,
        "status": status,
        "value": figure(measured.value),
        "unit": unit,
        "where": measured.where,
    }
