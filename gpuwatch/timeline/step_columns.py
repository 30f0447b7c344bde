"""The columns in which a trainer's steps are kept in full."""

from __future__ import annotations

from gpuwatch.samples import StepEnd
from gpuwatch.timeline.columns import number
from gpuwatch.timeline.settling import UNKNOWN
from gpuwatch.timeline.step_pauses import parts_within

STEP_COLUMNS = {
    "number": "q",
    "period": "f",
    "wait": "f",
    "gap": "f",
    "samples": "f",
    "epoch_position": "i",
    "loader": "i",
    "copy": "f",
    "forward": "f",
    "backward": "f",
    "optimizer": "f",
    "wait_cpu": "f",
    "settled": "b",
}


def step_row(step: StepEnd, training: float, gap: float | None, settled: bool) -> tuple[float, ...]:
    """One step's values in the order of the columns; `training` is its seconds without its phases."""
    return (
        step.number,
        training,
        number(step.wait_seconds),
        number(gap),
        number(step.samples),
        UNKNOWN if step.epoch_position is None else step.epoch_position,
        UNKNOWN if step.loader is None else step.loader,
        *parts_within(step, training),
        number(step.wait_cpu_seconds),
        settled,
    )
