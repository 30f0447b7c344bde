"""The columns in which a trainer's steps are kept in full."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from gpuwatch.samples import StepEnd
from gpuwatch.timeline.columns import Table, number
from gpuwatch.timeline.settling import UNKNOWN
from gpuwatch.timeline.step_pauses import parts_within

STEP_COLUMNS = {
    "number": "q",
    "period": "f",
    "wait": "f",
    "gap": "f",
    "samples": "f",
    "batches": "f",
    "epoch_position": "q",
    "loader": "q",
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
        step.batches,
        UNKNOWN if step.epoch_position is None else step.epoch_position,
        UNKNOWN if step.loader is None else step.loader,
        *parts_within(step, training),
        number(step.wait_cpu_seconds),
        settled,
    )


def row_of(steps: Table, step_number: int) -> int | None:
    """Where a step stands among the rows, None where it is not kept."""
    row = bisect_left(steps["number"], step_number)
    return row if row < len(steps) and steps["number"][row] == step_number else None


def settle(steps: Table, is_settled: Callable[[int, int, int, float], bool]) -> None:
    """Judges all rows again: by their end, their position in the epoch, their loader and their samples."""
    rows = zip(steps.times, steps["epoch_position"], steps["loader"], steps["samples"], strict=True)
    settled = steps["settled"]
    for row, (end_ns, position, loader, samples) in enumerate(rows):
        settled[row] = is_settled(end_ns, position, loader, samples)
