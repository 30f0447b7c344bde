"""What a trainer without a hook did in a window: shares from its stacks, steps from its loader's counter."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.timeline.run_history import TrainerHistory
from gpuwatch.timeline.stack_log import NOT_TRAINING
from gpuwatch.timeline.step_tiers import share
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import Share, StackWindow


@dataclass(frozen=True, slots=True)
class SampledFigures:
    """The figures of a window. A step is a batch: where gradients are accumulated, the optimizer steps more rarely."""

    train_seconds: float = 0.0
    steps: int = 0
    step_seconds: float | None = None  # mean training seconds per batch
    wait_share: float | None = None
    copy_share: float | None = None
    forward_share: float | None = None
    backward_share: float | None = None
    optimizer_share: float | None = None
    samples_per_second: float | None = None


def sampled_figures(history: TrainerHistory, stacks: StackWindow | None, start_ns: int, end_ns: int) -> SampledFigures:
    """The figures over (start, end].

    Where the window is longer than the stacks reach (15 min), sums are of the tiers, parts of its newest stretch.
    """
    if stacks is None:
        return SampledFigures()
    parts = stacks.train_phases
    training = 1.0 - sum(stacks.phases[phase].value for phase in NOT_TRAINING) if stacks.phases else 0.0
    rate, batch_size = stacks.batches_per_second, history.batch_size
    figures = SampledFigures(
        train_seconds=stacks.seconds * training,
        steps=stacks.batches,
        step_seconds=training / rate if rate and training > 0 else None,
        wait_share=_wait_share(stacks),
        copy_share=_value(parts.get("copy")),
        forward_share=_value(parts.get("forward")),
        backward_share=_value(parts.get("backward")),
        optimizer_share=_value(parts.get("optimizer")),
        samples_per_second=rate * batch_size if rate is not None and batch_size is not None else None,
    )
    if history.stacks.reaches(start_ns):
        return figures
    sums = history.tiers.sums(start_ns, end_ns)
    seconds = (end_ns - start_ns) / SECOND_NS
    return SampledFigures(
        train_seconds=sums["train"],
        steps=round(sums["steps"]),
        step_seconds=share(sums, "train", "steps"),
        wait_share=share(sums, "wait", "wait_train"),
        copy_share=figures.copy_share,
        forward_share=figures.forward_share,
        backward_share=figures.backward_share,
        optimizer_share=figures.optimizer_share,
        samples_per_second=sums["samples"] / seconds if batch_size is not None and seconds > 0 else None,
    )


def _wait_share(stacks: StackWindow) -> float | None:
    """A loop that reads no loader may load its data anywhere: that it waits for none is not known."""
    share_of = stacks.train_phases.get("wait")
    is_loop_seen = stacks.batches_per_second is not None and stacks.batches_of_loader
    return share_of.value if share_of is not None and (is_loop_seen or share_of.value > 0.0) else None


def _value(share_of: Share | None) -> float | None:
    return None if share_of is None else share_of.value
