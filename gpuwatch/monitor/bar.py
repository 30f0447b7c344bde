"""The bar of a run's panel: how its wall time divides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from gpuwatch.timeline.phases import LOST_TIME
from gpuwatch.timeline.rank_window import Bounds
from gpuwatch.timeline.run_history import TrainerHistory
from gpuwatch.timeline.spans import covered_ns
from gpuwatch.timeline.step_tiers import share
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import StackWindow


class Bar(TypedDict, total=False):
    """Shares of wall time by their names in RunNow; what is not named is not known."""

    wait_wall_share: float | None
    start_share: float | None
    copy_share: float | None
    forward_share: float | None
    backward_share: float | None
    optimizer_share: float | None
    sync_share: float | None
    other_share: float | None
    phase_share: float | None


def bar_of_steps(trainer: TrainerHistory, bounds: Bounds, sums: Mapping[str, float], rows: slice) -> Bar:
    """The parts that the hook measures, of the steps in which each is known, scaled to all training of the stretch."""
    periods = trainer.steps["period"][rows]

    def part(name: str) -> float | None:
        pairs = [
            (each, period) for each, period in zip(trainer.steps[name][rows], periods, strict=True) if each == each
        ]
        measured, of = sum(each for each, _ in pairs), sum(period for _, period in pairs)
        return _of_wall(measured / of * sums["train"] if of > 0 else None, bounds)

    waiting = share(sums, "wait", "wait_train")

    lost = trainer.phases.stretches(LOST_TIME, bounds.start_ns, bounds.end_ns)
    parts = (
        _of_wall(None if waiting is None else waiting * sums["train"], bounds),
        part("copy"),
        part("forward"),
        part("backward"),
        part("optimizer"),
        _of_wall(covered_ns(lost, bounds.start_ns, bounds.end_ns) / SECOND_NS, bounds),
    )
    # Whole seconds of steps against exact phases may come to a hair over 1.
    total = max(1.0, sum(each for each in parts if each is not None))
    wait, copy, forward, backward, optimizer, phase = (None if each is None else each / total for each in parts)
    return Bar(
        wait_wall_share=wait,
        copy_share=copy,
        forward_share=forward,
        backward_share=backward,
        optimizer_share=optimizer,
        phase_share=phase,
    )


def bar_of_stacks(stacks: StackWindow | None) -> Bar:
    """The parts that the stacks tell: every look belongs to one, so they add up to 1. Nothing without looks."""
    if stacks is None or not stacks.phases:
        return Bar()
    shares = {phase: share.value for phase, share in stacks.phases.items()}
    return Bar(
        wait_wall_share=shares["wait"] if shares["wait"] or stacks.batches_per_second is not None else None,
        start_share=shares["start"],
        copy_share=shares["copy"],
        forward_share=shares["forward"],
        backward_share=shares["backward"],
        optimizer_share=shares["optimizer"],
        sync_share=shares["sync"],
        other_share=shares["other"] + shares["log"],
        phase_share=shares["eval"] + shares["save"] + shares["compile"],
    )


def _of_wall(seconds: float | None, bounds: Bounds) -> float | None:
    return min(1.0, seconds / bounds.seconds) if seconds is not None and bounds.seconds > 0 else None
