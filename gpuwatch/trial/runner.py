"""Starts an arm in a fresh process and watches it with a monitor that other trainings cannot reach."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from gpuwatch.monitor.clock import SystemClock
from gpuwatch.monitor.monitor import Monitor
from gpuwatch.monitor.snapshot import Origin
from gpuwatch.sources.base import Source
from gpuwatch.trial.changes import Arm, Place, command_of, environment_of, for_scratch, overrides_of
from gpuwatch.trial.meter import Steady
from gpuwatch.trial.prediction import Prediction, predict
from gpuwatch.trial.results import RunResult
from gpuwatch.trial.runner import Enough, Stopping, Training, watch_run

OnProgress = Callable[[Steady | None], None]
_WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class Runner:
    """Runs arms one at a time.

    Args:
        command: the program as it is.
        environment: its usual one.
        hooked: puts the hook into an environment.
        enough: how long each run is watched.
        scratch: whether each runs in an empty folder.
        stopping: the user's wish to end it.
    """

    command: list[str]
    environment: Mapping[str, str]
    hooked: Callable[[dict[str, str]], dict[str, str]]
    enough: Enough
    scratch: bool
    stopping: Stopping
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="gpuwatch-trial-")
    )

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def look(self, arms: tuple[Arm, ...], on_progress: OnProgress) -> tuple[RunResult, dict[Arm, Prediction]]:
        """A first run as it is, with all that gpuwatch can see of it, and what the rules promise for each arm.

        It does not count: looking costs a little, and the files that it reads are then in memory for all arms alike.
        """
        from gpuwatch.monitor.wiring import live_monitor

        promised: dict[Arm, Prediction] = {}

        def at_end(monitor: Monitor) -> None:
            scene = monitor.final_scene(_WINDOW_SECONDS)
            findings = monitor.snapshot().findings
            found = {arm: predict(arm, scene, findings) for arm in arms}
            promised.update({arm: each for arm, each in found.items() if each is not None})

        monitor = live_monitor(hook_folder=self._meeting_place())
        return self._watched(Arm(), None, monitor, -1, on_progress, at_end), promised

    def run(self, arm: Arm, at: Place | None, place: int, on_progress: OnProgress) -> RunResult:
        """One run that counts: only its steps and the GPUs are watched, for every arm alike."""
        from gpuwatch.sources.hook_link.source import HookLinkSource
        from gpuwatch.sources.nvml import NvmlSource

        sources: list[Source] = [NvmlSource(1.0), HookLinkSource(self._meeting_place())]
        monitor = Monitor(sources, origin=Origin("live", "TRIAL"), clock=SystemClock())
        return self._watched(arm, at, monitor, place, on_progress, lambda monitor: None)

    def _watched(
        self,
        arm: Arm,
        at: Place | None,
        monitor: Monitor,
        place: int,
        on_progress: OnProgress,
        at_end: Callable[[Monitor], None],
    ) -> RunResult:
        try:
            if self.stopping.asked:
                return RunResult(place, None, None, interrupted=True)
            command = command_of(arm, self.command)
            environment = environment_of(arm, self.environment, self._meeting_place())
            if self.scratch:
                command, environment = for_scratch(command, environment)
            environment = self.hooked(environment)
            overrides = overrides_of(arm, at)
            if overrides is not None:
                environment["GPUWATCH_OVERRIDES"] = overrides
            with Training(command, environment, scratch=self.scratch, meeting_place=self._meeting_place()) as training:
                return watch_run(
                    training, monitor, self.enough, self.stopping, place=place, on_progress=on_progress, at_end=at_end
                )
        finally:
            monitor.stop()

    def _meeting_place(self) -> Path:
        return Path(self._folder.name)
