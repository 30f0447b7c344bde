"""Runs of a trial as tests make them up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gpuwatch.samples import LoaderFacts, ModelFacts, RunFacts
from gpuwatch.trial.changes import LOADER, Arm, Place
from gpuwatch.trial.results import Failure, Prediction, RunResult, Steady, Thermal

LOADER_FACTS = LoaderFacts(
    1, "/home/me/train.py", 12, "main", dataset="Images", num_workers=0, batch_size=16, pin_memory=False,
    persistent_workers=False, in_order=True, batches_per_epoch=100, role="train",
)  # fmt: skip


def facts(loader: LoaderFacts | None = LOADER_FACTS, device: str = "cpu", **more: Any) -> RunFacts:
    return RunFacts(
        0, "7.9", 7, 9, ("python", "train.py"), device=device, loaders=(loader,) if loader else (),
        model=ModelFacts(compiled=False, float32_matmul_precision="highest", cudnn_benchmark=False), **more,
    )  # fmt: skip


def run(
    place: int = 0,
    speed: float | None = 100.0,
    of: RunFacts | None = None,
    failure: Failure | None = None,
    celsius: float | None = None,
    batch_size: int = 16,
) -> RunResult:
    steady = None if speed is None else Steady(200, 20.0, speed / batch_size, speed, batch_size)
    thermal = None if celsius is None else Thermal(celsius, 20, 0)
    return RunResult(place, steady, facts() if of is None else of, failure, thermal)


def seen_with(arm: Arm) -> RunFacts:
    """The facts of a run in which all of the arm took effect."""
    loader = replace(LOADER_FACTS, **arm.of(LOADER))  # type: ignore[arg-type]
    return facts(loader, overrides=tuple(change.name for change in arm.changes))


@dataclass
class FakeRuns:
    """Makes up each run by a function of the arm and the place."""

    make: Callable[[Arm, int], RunResult]
    first: RunResult = field(default_factory=run)
    promised: dict[Arm, Prediction] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    places: list[Place | None] = field(default_factory=list)

    def probe(self, arms: tuple[Arm, ...], on_progress: Any) -> tuple[RunResult, dict[Arm, Prediction]]:
        return self.first, self.promised

    def run(self, arm: Arm, at: Place | None, place: int, on_progress: Any) -> RunResult:
        self.made.append(arm.label)
        self.places.append(at)
        return replace(self.make(arm, place), place=place)


class Silent:
    """Narrates nothing."""

    def begins(self, arm: Arm, place: int, of: int = 0) -> Callable[[Steady | None], None]:
        return lambda steady: None

    def ended(self, run: RunResult) -> None:
        pass
