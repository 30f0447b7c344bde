"""What simpler rules would have said of the same window: each claims that the loading holds the job up."""

from __future__ import annotations

from collections.abc import Callable
from statistics import quantiles

from gpuwatch.timeline.windows import GpuWindow, RankWindow, Scene

CPU_WAIT_SHARE = 0.10
UTILIZATION_PERCENT = 85.0
HIGH_PERCENT, LOW_PERCENT = 70.0, 10.0
TRACEML_INPUT_SHARE, TRACEML_COPY_SHARE, TRACEML_UTILIZATION_PERCENT = 0.10, 0.10, 30.0


def _rank(scene: Scene) -> RankWindow | None:
    return scene.runs[-1].critical if scene.runs else None


def _cpu_wait(scene: Scene) -> bool:
    rank = _rank(scene)
    return rank is not None and (rank.wait_share or 0.0) >= CPU_WAIT_SHARE


def _low_utilization(scene: Scene) -> bool:
    return any(_mean(gpu) < UTILIZATION_PERCENT for gpu in scene.gpus if gpu.utilization is not None)


def _few_workers(scene: Scene) -> bool:
    rank = _rank(scene)
    loader = rank.train_loader if rank is not None else None
    return loader is not None and (loader.num_workers or 0) < 2


def _percentiles(scene: Scene) -> bool:
    """LowGPUUtilization of the SageMaker debugger: low altogether, or swinging down to nothing."""
    for gpu in scene.gpus:
        values = [value for _, value in gpu.train_utilization_series]
        if len(values) >= 2:
            twentieths = quantiles(values, n=20, method="inclusive")
            if twentieths[-1] < HIGH_PERCENT or twentieths[0] < LOW_PERCENT:
                return True
    return False


def _traceml(scene: Scene) -> bool:
    """Its thresholds for input, copies and utilization; its shares are of the CPU's step time."""
    rank = _rank(scene)
    if rank is not None and (rank.wait_share or 0.0) >= TRACEML_INPUT_SHARE:
        return True
    if rank is not None and (rank.copy_share or 0.0) >= TRACEML_COPY_SHARE:
        return True
    return any(_mean(gpu) < TRACEML_UTILIZATION_PERCENT for gpu in scene.gpus if gpu.utilization is not None)


def _mean(gpu: GpuWindow) -> float:
    stats = gpu.train_utilization or gpu.utilization
    return stats.mean if stats is not None else 100.0


BASELINES: dict[str, Callable[[Scene], bool]] = {
    "CPU wait >= 10%": _cpu_wait,
    "utilization < 85%": _low_utilization,
    "num_workers < 2": _few_workers,
    "SageMaker p95 < 70 or p5 < 10": _percentiles,
    "TraceML thresholds": _traceml,
}
"""By the name that the table gives them."""


def flagged(name: str, scene: Scene) -> bool:
    """Whether the rule of that name complains of this window."""
    return BASELINES[name](scene)
