"""The bar of a run's panel: how its training time divides, and beside it what share of all time is pauses."""

from __future__ import annotations

from typing import TypedDict

from gpuwatch.timeline.phases import LOST_TIME
from gpuwatch.timeline.rank_window import Bounds
from gpuwatch.timeline.run_history import TrainerHistory
from gpuwatch.timeline.spans import covered_ns
from gpuwatch.timeline.stack_log import NOT_TRAINING
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import StackWindow


class Bar(TypedDict, total=False):
    """Shares by their names in RunNow; what is not named is not known."""

    start_share: float | None
    copy_share: float | None
    forward_share: float | None
    backward_share: float | None
    optimizer_share: float | None
    sync_share: float | None
    other_share: float | None
    phase_share: float | None


def bar_of_steps(trainer: TrainerHistory, bounds: Bounds, wait_share: float | None, rows: slice) -> Bar:
    """The parts that the hook measures, each of the steps in which it is known."""
    periods = trainer.steps["period"][rows]

    def part(name: str) -> float | None:
        pairs = [
            (each, period) for each, period in zip(trainer.steps[name][rows], periods, strict=True) if each == each
        ]
        measured, of = sum(each for each, _ in pairs), sum(period for _, period in pairs)
        return measured / of if of > 0 else None

    parts = {name: part(name) for name in ("copy", "forward", "backward", "optimizer")}
    # The wait may be of more steps than the parts: together they may come to a hair over 1.
    room, total = max(0.0, 1.0 - (wait_share or 0.0)), sum(each or 0.0 for each in parts.values())
    scale = min(1.0, room / total) if total > 0 else 1.0
    lost = trainer.phases.stretches(LOST_TIME, bounds.start_ns, bounds.end_ns)
    paused = covered_ns(lost, bounds.start_ns, bounds.end_ns) / SECOND_NS
    return Bar(
        copy_share=_scaled(parts["copy"], scale),
        forward_share=_scaled(parts["forward"], scale),
        backward_share=_scaled(parts["backward"], scale),
        optimizer_share=_scaled(parts["optimizer"], scale),
        phase_share=min(1.0, paused / bounds.seconds) if bounds.seconds > 0 else None,
    )


def bar_of_stacks(stacks: StackWindow | None) -> Bar:
    """The parts that the stacks show: with the wait they are all of training time. Nothing without samples."""
    if stacks is None or not stacks.phases:
        return Bar()
    pauses = sum(stacks.phases[phase].value for phase in NOT_TRAINING)
    shares = {phase: share.value for phase, share in stacks.train_phases.items()}
    if not shares:
        return Bar(phase_share=pauses)
    return Bar(
        start_share=shares["start"],
        copy_share=shares["copy"],
        forward_share=shares["forward"],
        backward_share=shares["backward"],
        optimizer_share=shares["optimizer"],
        sync_share=shares["sync"],
        other_share=shares["other"] + shares["log"],
        phase_share=pauses,
    )


def _scaled(part: float | None, scale: float) -> float | None:
    return None if part is None else part * scale
