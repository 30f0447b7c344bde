"""Whether a finding has ended already, though the window still remembers what it was about."""

from __future__ import annotations

from functools import cached_property

from gpuwatch.diagnosis.cases import same_case_in
from gpuwatch.diagnosis.gates import may_judge
from gpuwatch.diagnosis.rule import AnyCase, Rule
from gpuwatch.timeline.windows import Scene


class NewestHalf:
    """The newest half of a scene's window, made when a rule that fires asks for it.

    A mean over a minute falls below a third of itself 40 s after its cause has gone; with the six evaluations that
    clear a finding it took 75 to 85 s, with the newest half asked as well for 60 s at most.
    """

    def __init__(self, scene: Scene) -> None:
        self._whole = scene

    @cached_property
    def _scene(self) -> Scene | None:
        return self._whole.newest_half() if self._whole.newest_half is not None else None

    def is_clear(self, rule: Rule, case: AnyCase) -> bool:
        """Whether a rule that fades has nothing to say of it, with enough in it to say something."""
        if not rule.fades or self._scene is None:
            return False
        newer = same_case_in(self._scene, case)
        return newer is not None and may_judge(rule, newer) and rule.check(newer) is None
