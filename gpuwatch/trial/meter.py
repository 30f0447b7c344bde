"""How fast a run trains once it has settled, from its own steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwatch.samples import RunFacts
from gpuwatch.timeline.figures import StepSums, run_rate
from gpuwatch.timeline.runs import sums_of_rows
from gpuwatch.timeline.steps import head_batches
from gpuwatch.timeline.timeline import Timeline
from gpuwatch.timeline.trainer import TrainerHistory
from gpuwatch.trial.results import Steady

LEAST_STEPS = 10
"""However long they take, this many steps make a figure."""
SETTLED_AT_LATEST = 100
"""The step from which on a run counts, settled or not."""


@dataclass(slots=True)
class _Count:
    counted_ns: int | None = None
    began_ns: int = 0
    sums: StepSums = field(default_factory=StepSums)


@dataclass(slots=True)
class Meter:
    """Counts the steps of the trial's trainers from where each has settled.

    A trainer has settled when its warm-up is over and, after that, the batches are gone that its workers had made
    ahead meanwhile: they come at no cost.

    Args:
        timeline: that the trainers' steps come into.
        seconds: of training that are enough; None: whatever `steps` say.
        steps: that are enough.
    """

    timeline: Timeline
    seconds: float | None
    steps: int | None = None
    _counts: dict[str, _Count] = field(default_factory=dict)

    def update(self) -> None:
        """Takes up the steps that have come: at least every few minutes, for the timeline forgets them."""
        with self.timeline.lock:
            for history in self.timeline.trainers.values():
                if history.is_exact and len(history.steps):
                    self._read(history)

    @property
    def is_full(self) -> bool:
        """Whether every trainer of the run has done what was asked."""
        counts = self._of_run()
        return bool(counts) and all(self._is_enough(count) for count in counts.values())

    @property
    def began_ns(self) -> int | None:
        """When the last trainer had settled; None before."""
        counts = self._of_run()
        settled = [count.began_ns for count in counts.values() if count.counted_ns is not None]
        return max(settled) if settled and len(settled) == len(counts) else None

    @property
    def last_step_ns(self) -> int | None:
        """When the newest step of any trainer ended."""
        with self.timeline.lock:
            ends = [each.last_step_ns for each in self.timeline.trainers.values() if each.last_step_ns is not None]
        return max(ends, default=None)

    @property
    def facts(self) -> RunFacts | None:
        """What the run's first trainer says of itself; before any step, any trainer."""
        with self.timeline.lock:
            trainers = self.timeline.trainers
            own = [trainers[name].facts for name in self._of_run() if name in trainers]
            known = [facts for facts in own or [each.facts for each in trainers.values()] if facts is not None]
        return min(known, key=lambda facts: (facts.rank or 0, facts.pid), default=None)

    def steady(self) -> Steady | None:
        """What has been counted so far; None before the first step that counts."""
        counts = [count.sums for count in self._of_run().values() if count.sums.step_seconds]
        facts = self.facts
        if not counts:
            return None
        are_counted = all(sums.samples and sums.samples_train == sums.train for sums in counts)
        return Steady(
            steps=round(min(sums.steps for sums in counts)),
            seconds=max(sums.train for sums in counts),
            steps_per_second=min(sums.steps / sums.train for sums in counts),
            samples_per_second=run_rate([(False, sums.samples_per_second) for sums in counts]) if are_counted else None,
            batch_size=_batch_size(facts) if facts is not None else None,
        )

    def _is_enough(self, count: _Count) -> bool:
        if count.sums.steps < max(LEAST_STEPS, self.steps or 0):
            return False
        return self.seconds is None or count.sums.train >= self.seconds

    def _of_run(self) -> dict[str, _Count]:
        """The counts of the trainers that are the run: of several, that with the most steps, and its other ranks."""
        with self.timeline.lock:
            trainers = {name: each for name, each in self.timeline.trainers.items() if name in self._counts}
        if not trainers:
            return {}
        most = max(trainers.values(), key=lambda each: each.steps_total)
        group = most.facts.group if most.facts is not None else None
        return {
            name: self._counts[name]
            for name, each in trainers.items()
            if each is most or (group is not None and each.facts is not None and each.facts.group == group)
        }

    def _read(self, history: TrainerHistory) -> None:
        count = self._counts.setdefault(history.trainer, _Count())
        if count.counted_ns is None:
            count.counted_ns = _settled_ns(history)
            if count.counted_ns is None:
                return
            count.began_ns = count.counted_ns
        steps = history.steps
        count.sums += sums_of_rows(steps, slice(steps.since(count.counted_ns), len(steps)))
        count.counted_ns = steps.times[-1]


def _settled_ns(history: TrainerHistory) -> int | None:
    over_ns = history.warm_up.over_ns
    if over_ns is None:  # steps that never agree with each other are what this run is like
        return history.steps.times[-1] if len(history.steps) >= SETTLED_AT_LATEST else None
    loaders = history.facts.loaders if history.facts is not None else ()
    ahead = max((head_batches(loader) for loader in loaders if loader.role == "train"), default=0)
    row = history.steps.until(over_ns) - 1 + ahead
    return history.steps.times[row] if 0 <= row < len(history.steps) else None


def _batch_size(facts: RunFacts) -> int | None:
    return next((loader.batch_size for loader in facts.loaders if loader.role == "train"), None)
