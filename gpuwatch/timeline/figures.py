"""The figures of a stretch of training, computed here and nowhere else.

Single steps, the timeline's seconds and minutes, stack samples and the minutes of a recording each come to the same
sums; every figure follows from those. Unknown is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

from gpuwatch.timeline.windows import GpuWindow, RankWindow, RunWindow

STEPS = 30
"""As many a window holds at least, up to 15 min back: from here on its figures are judged as they are."""


@dataclass(frozen=True, slots=True)
class StepSums:
    """What the steps of one trainer add up to; of a trainer without a hook, a step is a batch.

    `train` is their training seconds, without phases. Every amount X has the training seconds of just the steps in
    which it is known, `X_train`: an unknown never counts as zero. `steps_train` are those in which the steps were
    counted: a loader's counter is read once a second, and stacks are sampled before its first reading too.
    """

    steps: float = 0.0
    steps_train: float = 0.0
    steps_wall: float = 0.0  # the same with their phases
    train: float = 0.0
    wait: float = 0.0
    wait_train: float = 0.0
    wait_steps: float = 0.0  # in which the wait is known
    samples: float = 0.0
    samples_train: float = 0.0
    batches: float = 0.0  # 0: not known how many go into a step
    settled_wait: float = 0.0
    settled_wait_train: float = 0.0
    settled_gap: float = 0.0  # GPU idle by event pairs
    settled_gap_train: float = 0.0
    copy: float = 0.0
    copy_train: float = 0.0
    forward: float = 0.0
    forward_train: float = 0.0
    backward: float = 0.0
    backward_train: float = 0.0
    optimizer: float = 0.0
    optimizer_train: float = 0.0

    def __add__(self, other: StepSums) -> StepSums:
        return StepSums(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def step_seconds(self) -> float | None:
        """The mean training seconds of a step."""
        return quotient(self.steps_train, self.steps)

    @property
    def steps_per_second(self) -> float | None:
        """Over all of the stretch, phases included."""
        return quotient(self.steps, self.steps_wall)

    @property
    def wait_share(self) -> float | None:
        """What part of training waits for data."""
        return quotient(self.wait, self.wait_train)

    @property
    def settled_wait_share(self) -> float | None:
        """The same of settled steps only."""
        return quotient(self.settled_wait, self.settled_wait_train)

    @property
    def gap_share(self) -> float | None:
        """In what part of the settled steps the GPU idled because of a wait."""
        return quotient(self.settled_gap, self.settled_gap_train)

    @property
    def samples_per_second(self) -> float | None:
        """Of training."""
        return quotient(self.samples, self.samples_train)

    @property
    def batches_per_step(self) -> float | None:
        """Over 1 where gradients are accumulated."""
        return quotient(self.batches, self.steps) if self.batches else None

    @property
    def wait_seconds_per_batch(self) -> float | None:
        """The training loop's mean wait for one batch, of the steps whose wait is known."""
        seconds = quotient(self.wait, self.wait_steps)
        return None if seconds is None else seconds / (self.batches_per_step or 1.0)


PARTS = ("copy", "forward", "backward", "optimizer")
"""Of a step, in addition to the wait."""


class RankFigures(TypedDict):
    """The figures of `RankWindow` that follow from sums."""

    train_seconds: float
    steps: int
    steps_per_second: float | None
    wait_share: float | None
    wait_seconds_per_batch: float | None
    settled_wait_share: float | None
    gap_share: float | None
    copy_share: float | None
    forward_share: float | None
    backward_share: float | None
    optimizer_share: float | None
    samples_per_second: float | None
    batches_per_step: float | None


def rank_figures(sums: StepSums) -> RankFigures:
    """All of them."""
    return RankFigures(
        train_seconds=sums.train,
        steps=round(sums.steps),
        steps_per_second=sums.steps_per_second,
        wait_share=sums.wait_share,
        wait_seconds_per_batch=sums.wait_seconds_per_batch,
        settled_wait_share=sums.settled_wait_share,
        gap_share=sums.gap_share,
        copy_share=quotient(sums.copy, sums.copy_train),
        forward_share=quotient(sums.forward, sums.forward_train),
        backward_share=quotient(sums.backward, sums.backward_train),
        optimizer_share=quotient(sums.optimizer, sums.optimizer_train),
        samples_per_second=sums.samples_per_second,
        batches_per_step=sums.batches_per_step,
    )


def quotient(amount: float, of: float) -> float | None:
    """One sum over another; None where nothing was measured."""
    return amount / of if of > 0 else None


def sampled_sums(
    seconds: float,
    training: float,
    parts: Mapping[str, float],
    *,
    steps: float,
    counted_seconds: float | None,
    reads_loader: bool,
    batch_size: int | None,
) -> StepSums:
    """The sums of a stretch that was seen from outside.

    A loop that reads no loader may load its data anywhere: that no sample shows it waiting is no wait of 0.

    Args:
        seconds: in which stacks were sampled.
        training: the share of them that was training.
        parts: shares of the training, by phase.
        steps: batches that were counted.
        counted_seconds: in which they were, phases included; None where nothing counts.
        reads_loader: whether what counts is a loader.
        batch_size: samples in a batch.
    """
    train, counted = seconds * training, (counted_seconds or 0.0) * training
    wait_share = parts.get("wait")
    is_known = bool(wait_share) or (wait_share is not None and reads_loader)
    amounts = {name: train * parts[name] for name in PARTS if name in parts}
    return StepSums(
        steps=steps,
        steps_train=counted,
        steps_wall=counted_seconds or 0.0,
        train=train,
        wait=train * (wait_share or 0.0),
        wait_train=train if is_known else 0.0,
        wait_steps=steps * (quotient(train, counted) or 0.0) if is_known else 0.0,
        samples=steps * (batch_size or 0),
        samples_train=0.0 if batch_size is None else counted,
        **amounts,
        **{f"{name}_train": train for name in amounts},
    )


def urgency(has_ended: bool, wait_share: float | None, settled_wait_share: float | None) -> tuple[bool, float]:
    """Greatest for the critical rank: the one with the largest wait, which the others wait for in the collective.

    A living one comes before one that ended.
    """
    return (not has_ended, (wait_share if settled_wait_share is None else settled_wait_share) or 0.0)


def critical_rank(ranks: Iterable[RankWindow]) -> RankWindow:
    """The rank with the largest wait."""
    return max(ranks, key=lambda rank: urgency(rank.ended is not None, rank.wait_share, rank.settled_wait_share))


def run_rate(ranks: Sequence[tuple[bool, float | None]]) -> float | None:
    """Samples per second of all ranks together, those that ended left out while others live; None where none is known.

    Args:
        ranks: whether each has ended, and its own rate.
    """
    living = [rate for has_ended, rate in ranks if not has_ended] or [rate for _, rate in ranks]
    known = [rate for rate in living if rate is not None]
    return sum(known) if known else None


def joules_per_sample(run: RunWindow, gpus: Mapping[str, GpuWindow]) -> float | None:
    """The energy of all GPUs of a run over the samples that its ranks took; None where one of either is not known."""
    energies = [gpus[uuid].energy_joules if uuid in gpus else None for uuid in run.gpu_uuids]
    samples = [
        None if rank.samples_per_second is None else rank.samples_per_second * rank.train_seconds
        for rank in run.ranks
        if rank.steps
    ]
    known_energies, known_samples = ([each for each in found if each is not None] for found in (energies, samples))
    if not energies or len(known_energies) < len(energies) or len(known_samples) < len(samples):
        return None
    return quotient(sum(known_energies), sum(known_samples))
