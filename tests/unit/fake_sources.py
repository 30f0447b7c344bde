"""Sources for monitor tests: they play what they are given, fail when told to, and note what is done to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuwatch.diagnosis.finding import Finding, Level, Severity
from gpuwatch.monitor.clock import VirtualClock
from gpuwatch.monitor.monitor import Judge, Monitor, Source
from gpuwatch.monitor.snapshot import Origin, Snapshot
from gpuwatch.samples import Sample
from gpuwatch.timeline.windows import Scene
from tests.unit.sample_builder import START_NS, at


class ScriptedSource:
    """Hands out each batch at its second; `failing` moments raise instead."""

    def __init__(
        self,
        batches: Iterable[tuple[float, Sequence[Sample]]] = (),
        *,
        failing: Iterable[float] = (),
        name: str = "fake",
    ) -> None:
        self.name = name
        self._batches = sorted([(at(second), list(samples)) for second, samples in batches], key=lambda each: each[0])
        self._failing = sorted(at(second) for second in failing)
        self.asked_ns: list[int] = []
        self.closed = 0

    def fileno(self) -> int | None:
        return None

    def due_ns(self) -> int | None:
        moments = [time for time, _ in self._batches[:1]] + self._failing[:1]
        return min(moments, default=None)

    def collect(self, now_ns: int) -> Iterable[Sample]:
        self.asked_ns.append(now_ns)
        if self._failing and self._failing[0] <= now_ns:
            self._failing.pop(0)
            raise KeyError("a bug")
        samples: list[Sample] = []
        while self._batches and self._batches[0][0] <= now_ns:
            samples += self._batches.pop(0)[1]
        return samples

    def close(self) -> None:
        self.closed += 1


class ScriptedJudge:
    """Notes the scenes it gets; says one finding from the second one on."""

    def __init__(self, *, failing: bool = False) -> None:
        self.scenes: list[Scene] = []
        self.failing = failing

    def evaluate(self, scene: Scene) -> tuple[Finding, ...]:
        self.scenes.append(scene)
        if self.failing:
            raise ZeroDivisionError("a rule's bug")
        return (finding("low-util"),) if len(self.scenes) > 1 else ()


def finding(rule: str, severity: Severity = Severity.INFO, behind: str | None = None, state: str = "firing") -> Finding:
    """A finding of that name."""
    return Finding(rule, severity, Level.E2, rule, (), state, START_NS, behind=behind)  # type: ignore[arg-type]


def monitor(*sources: Source, engine: Judge | None = None, **options: object) -> Monitor:
    """A monitor on a clock that jumps."""
    return Monitor(
        sources,
        origin=Origin("simulated", "SIMULATED test"),
        clock=VirtualClock(START_NS, 1_000_000.0),
        engine=engine,
        **options,  # type: ignore[arg-type]
    )


def ticks(watch: Monitor, seconds: float) -> list[Snapshot]:
    """Lets the monitor run to a second after the start, and returns its snapshots."""
    seen: list[Snapshot] = []
    watch.run_until(at(seconds), on_tick=seen.append)
    return seen
