"""Cuts a scene into the cases that rules judge: one per run, one per GPU, one for the machine."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwatch.diagnosis.rule import AnyCase, GpuCase, MachineCase, RunCase
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
    gpus = tuple(gpu for gpu in scene.gpus if gpu.facts.uuid in used)
    return RunCase(scene=scene, run=run, gpus=gpus, holding=holding, settings=settings, advised=advised)


def gpu_case_of(
    scene: Scene, gpu: GpuWindow, holding: frozenset[str] = frozenset(), settings: Settings = _USUAL
) -> GpuCase:
    """One GPU with the run that trains on it: of several, the one with the most steps in the window."""
    users = [run for run in scene.runs if gpu.facts.uuid in run.gpu_uuids]
    run = max(users, key=lambda run: (run.critical.ended is None, run.critical.steps), default=None)
    return GpuCase(scene=scene, gpu=gpu, run=run, holding=holding, settings=settings)


def same_case_in(scene: Scene, case: AnyCase) -> AnyCase | None:
    """The case of the same subject in another scene, with the same rules holding; None where it is not there."""
    if isinstance(case, RunCase):
        runs = [run for run in scene.runs if run.id == case.run.id]
        return run_case_of(scene, runs[0], case.holding, case.settings, case.advised) if runs else None
    if isinstance(case, GpuCase):
        gpus = [gpu for gpu in scene.gpus if gpu.facts.uuid == case.gpu.facts.uuid]
        return gpu_case_of(scene, gpus[0], case.holding, case.settings) if gpus else None
    return MachineCase(scene=scene, holding=case.holding, settings=case.settings)
