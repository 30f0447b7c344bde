"""Cuts a scene into the cases that rules judge: one per run, one per GPU, one for the machine."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.diagnosis.rule import GpuCase, MachineCase, RunCase
from gpuwatch.diagnosis.settings import Settings
from gpuwatch.timeline.windows import GpuWindow, RunWindow, Scene

_USUAL = Settings()
_NOTHING: Mapping[str, int] = {}


def run_case_of(
    scene: Scene,
    run: RunWindow,
    holding: frozenset[str] = frozenset(),
    settings: Settings = _USUAL,
    advised: Mapping[str, int] = _NOTHING,
) -> RunCase:
    """One run with the GPUs it uses."""
    used = set(run.gpu_uuids)
    return RunCase(
        run=run,
        gpus=tuple(gpu for gpu in scene.gpus if gpu.facts.uuid in used),
        all_runs=scene.runs,
        host=scene.host,
        machine=scene.machine,
        quality=scene.quality,
        now_ns=scene.now_ns,
        window_seconds=scene.window_seconds,
        holding=holding,
        settings=settings,
        all_gpus=scene.gpus,
        advised=advised,
    )


def gpu_case_of(
    scene: Scene, gpu: GpuWindow, holding: frozenset[str] = frozenset(), settings: Settings = _USUAL
) -> GpuCase:
    """One GPU with the run that trains on it: of several, the one with the most steps in the window."""
    users = [run for run in scene.runs if gpu.facts.uuid in run.gpu_uuids]
    return GpuCase(
        gpu=gpu,
        run=max(users, key=lambda run: (run.critical.ended is None, run.critical.steps), default=None),
        all_runs=scene.runs,
        host=scene.host,
        quality=scene.quality,
        now_ns=scene.now_ns,
        window_seconds=scene.window_seconds,
        holding=holding,
        settings=settings,
    )


def machine_case_of(scene: Scene, holding: frozenset[str] = frozenset(), settings: Settings = _USUAL) -> MachineCase:
    """The machine with all its GPUs and runs."""
    return MachineCase(
        gpus=scene.gpus,
        runs=scene.runs,
        host=scene.host,
        machine=scene.machine,
        quality=scene.quality,
        now_ns=scene.now_ns,
        window_seconds=scene.window_seconds,
        holding=holding,
        settings=settings,
        xids=scene.xids,
    )
