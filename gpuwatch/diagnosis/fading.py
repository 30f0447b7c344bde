"""Whether a finding has ended already, though the window still remembers what it was about."""

from __future__ import annotations

from functools import cached_property

from gpuwatch.diagnosis.cases import gpu_case_of, machine_case_of, run_case_of
from gpuwatch.diagnosis.gates import may_judge
from gpuwatch.diagnosis.rule import GpuCase, MachineCase, Rule, RunCase
from gpuwatch.timeline.windows import Scene

Case = RunCase | GpuCase | MachineCase


class NewestHalf:
    """The newest half of a scene's window, made when a rule that fires asks for it.

    A mean over a minute falls below a third of itself 40 s after its cause has gone; with the six evaluations that
    unsay a finding it stood for 75 to 85 s, with the newest half asked as well for 60 s at most.
    """

    def __init__(self, scene: Scene) -> None:
        self._whole = scene

    @cached_property
    def _scene(self) -> Scene | None:
        return self._whole.newest_half() if self._whole.newest_half is not None else None

    def is_clear(self, rule: Rule, case: Case) -> bool:
        """Whether a rule that fades has nothing to say of it, with enough in it to say something."""
        if not rule.fades or self._scene is None:
            return False
        newer = _same_of(self._scene, case)
        return newer is not None and may_judge(rule, newer) and rule.check(newer) is None


def _same_of(scene: Scene, case: Case) -> Case | None:
    """The case of the same subject in another scene, with the same rules holding."""
    if isinstance(case, RunCase):
        runs = [run for run in scene.runs if run.id == case.run.id]
        return run_case_of(scene, runs[0], case.holding, case.settings, case.advised) if runs else None
    if isinstance(case, GpuCase):
        gpus = [gpu for gpu in scene.gpus if gpu.facts.uuid == case.gpu.facts.uuid]
        return gpu_case_of(scene, gpus[0], case.holding, case.settings) if gpus else None
    return machine_case_of(scene, case.holding, case.settings)
