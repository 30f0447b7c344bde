"""The steps of one trainer summed per second and per minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwatch.samples import StackTally
from gpuwatch.timeline.columns import number
from gpuwatch.timeline.stack_log import NOT_TRAINING
from gpuwatch.timeline.tiers import MINUTE_NS, MINUTES_KEPT, SECOND_NS, SECONDS_KEPT, SumBuckets

STEPS = (
    "steps",
    "train",
    "wait",
    "wait_train",
    "wait_steps",
    "samples",
    "samples_train",
    "batches",
    "settled_wait",
    "settled_train",
)
GAPS = ("gap", "gap_train")
RANGES = ("period", "share")


class StepTiers:
    """Sums of training seconds and of what was measured in them.

    Every sum X has beside it the training seconds of just the steps where X is known ("X_train"): a share is their
    quotient, so an unknown never counts as zero. "wait_steps" is their number.

    Of a step with a phase in it, the training is its end: evaluations and checkpoints follow the optimizer, they do not
    come before it.
    """

    __slots__ = ("minutes", "seconds")

    def __init__(self) -> None:
        names = (*STEPS, *GAPS)
        self.seconds = SumBuckets(SECOND_NS, SECONDS_KEPT, "f", names, RANGES)
        self.minutes = SumBuckets(MINUTE_NS, MINUTES_KEPT, "d", names, RANGES)

    def add_step(
        self, end_ns: int, training: float, wait_seconds: float | None, samples: int | None, batches: int, settled: bool
    ) -> None:
        """One step that ended at `end_ns` after `training` seconds."""
        has_wait = wait_seconds is not None
        wait = wait_seconds or 0.0
        amounts = (
            1.0,
            training,
            wait,
            training if has_wait else 0.0,
            1.0 if has_wait else 0.0,
            float(samples or 0),
            0.0 if samples is None else training,
            float(batches),
            wait if settled else 0.0,
            training if settled and has_wait else 0.0,
            0.0,
            0.0,
        )
        share = number(wait / training if has_wait and training > 0 else None)
        self._add(end_ns, training, amounts, (training, share))

    def add_gap(self, end_ns: int, training: float, gap_seconds: float) -> None:
        """The GPU's idle time of a settled step."""
        amounts = (0.0,) * len(STEPS) + (gap_seconds, training)
        self._add(end_ns, training, amounts, (number(None), number(None)))

    def add_tally(self, tally: StackTally, *, has_batch_size: bool) -> None:
        """A second that was looked at from outside: its training and the waits in it are by share of samples."""
        if not tally.samples:
            return
        per_sample = (tally.end_ns - tally.start_ns) / SECOND_NS / tally.samples
        training = per_sample * (tally.samples - sum(tally.phases.get(phase, 0) for phase in NOT_TRAINING))
        wait = per_sample * tally.phases.get("wait", 0)
        sampled = training if has_batch_size else 0.0
        amounts = (0.0, training, wait, training, 0.0, 0.0, sampled, 0.0, 0.0, 0.0, 0.0, 0.0)
        share = number(wait / training if training > 0 else None)
        self._spread(tally.start_ns, tally.end_ns, amounts, (number(None), share))

    def add_batches(self, start_ns: int, end_ns: int, batches: int, batch_size: int | None) -> None:
        """Batches that were counted from outside over a stretch."""
        samples = float(batches * (batch_size or 0))
        amounts = (float(batches), 0.0, 0.0, 0.0, float(batches), samples, 0.0, float(batches), 0.0, 0.0, 0.0, 0.0)
        period = (end_ns - start_ns) / SECOND_NS / batches
        self._spread(start_ns, end_ns, amounts, (period, number(None)))

    def fill_minutes(self, times_ns: Sequence[int], columns: Mapping[str, Sequence[float]]) -> None:
        """Fills minutes whose steps are known only by their sums; their seconds are not known any more."""
        self.minutes.fill(times_ns, columns)
        self.seconds.trimmed = True

    def sums(self, start_ns: int, end_ns: int) -> Mapping[str, float]:
        """All sums over a stretch."""
        tier = self.reaching(start_ns)
        span = tier.span(start_ns, end_ns)
        return {name: float(sum(tier.arrays[name][span])) for name in (*STEPS, *GAPS)}

    def reaching(self, start_ns: int) -> SumBuckets:
        """The finer tier that reaches back to `start_ns`."""
        return self.seconds if self.seconds.reaches(start_ns) else self.minutes

    def _add(self, end_ns: int, training: float, amounts: tuple[float, ...], values: tuple[float, float]) -> None:
        self._spread(end_ns - round(training * SECOND_NS), end_ns, amounts, values)

    def _spread(self, start_ns: int, end_ns: int, amounts: tuple[float, ...], values: tuple[float, float]) -> None:
        self.seconds.add(start_ns, end_ns, amounts, values)
        self.minutes.add(start_ns, end_ns, amounts, values)


def share(sums: Mapping[str, float], name: str, train: str) -> float | None:
    """One quotient of the sums; None where nothing was measured."""
    return sums[name] / sums[train] if sums[train] > 0 else None
