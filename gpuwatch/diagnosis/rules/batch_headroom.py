"""Most GPU memory is free and the GPU is not saturated: a larger batch may be faster.

Means:
    Each step costs the same launches and the same Python whatever its batch; a larger batch spreads them.
Evidence:
    Hook: peak allocated memory at most half of the GPU's over 200 steps, and one of: the GPU idles between kernels,
    is busy at low power, or is below 85% without waiting for data.
Fires:
    Peak at most 50% of the memory.
Clears:
    Peak above 65%.
Not when:
    The run waits for data: a bigger batch then brings the same samples per second. A larger batch changes the
    optimization: the learning rate must be retuned. A larger model or input is never the answer to idle hardware.
Causes:
    A batch chosen for a smaller GPU or a larger model.
Fix:
    Double the batch first; the value given is what would fill 90% of the memory, rounded down to a multiple of 8.
Gain:
    A hint. Compare samples per second, never steps per second.
Verify:
    Samples per second up, peak memory at most 90%, the loss per sample no worse.
Source:
    SageMaker debugger's BatchSize rule; fixed part = parameters, gradients and optimizer state.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.compute import BUSY_PERCENT, peak_memory_share, works_lightly
from gpuwatch.diagnosis.advice.starvation import starvation_of
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes, percent
from gpuwatch.timeline.windows import RankWindow

FILL_SHARE = 0.90
STATE_COPIES = 4  # weights, gradients and Adam's two moments


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.50, "of the memory used at the peak: reported up to here")
    clear_share: float = threshold(0.65, "until more is used", bounded_by="fire_share")
    steps: int = threshold(200, "before anything is reported")


@rule(
    "batch-headroom",
    family="memory",
    subject="run",
    level=Level.E2,
    after=("data-starvation", "launch-bound"),
    behind=("data-starvation", "amp-off"),
    thresholds=Thresholds,
)
def batch_headroom(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    share = peak_memory_share(rank)
    symptom = _symptom(case)
    batch = rank.train_loader.batch_size if rank.train_loader else None
    if share is None or share > limits.clear_share or rank.steps_total < limits.steps or symptom is None or not batch:
        return None
    assert rank.memory is not None and rank.memory.allocated_peak_bytes and rank.memory.total_bytes
    limit = _batch_that_fits(rank, batch)
    return Draft(
        summary=(
            f"{percent(1 - share)} of the GPU memory stays free and {symptom}: "
            f"a batch larger than {batch} may be faster"
        ),
        severity=Severity.HINT,
        level=Level.E2,
        evidence=(
            Measure(
                "allocated_peak_bytes",
                rank.memory.allocated_peak_bytes,
                f"peak {gibibytes(rank.memory.allocated_peak_bytes)} of {gibibytes(rank.memory.total_bytes)}",
            ),
            share_measure("peak_memory_share", share, "peak memory"),
            Measure("batch_size", batch, f"batch of {batch}"),
        ),
        fires=share <= limits.fire_share,
        fix=Fix(
            text=(
                f"Double the batch to {2 * batch} and compare samples per second"
                + (f"; about {limit} would fill 90% of the memory" if limit else "")
                + "; retune the learning rate"
            ),
            code=f"batch_size={2 * batch}",
            file=rank.train_loader.file if rank.train_loader else None,
            line=rank.train_loader.line if rank.train_loader else None,
            value=2 * batch,
        ),
        hint="no promise: how a step's time grows with its batch is not known before it is tried",
        ruled_out=_ruled_out(case),
        verify="Samples per second up, peak memory at most 90%",
        chart=("gpu.memory_used_bytes", "run.samples_per_second"),
    )


def _ruled_out(case: RunCase) -> tuple[RuledOut, ...]:
    starvation = starvation_of(case)
    if starvation is None:
        return ()
    return (RuledOut("waiting for data", f"that explains {percent(starvation.share)}"),)


def _symptom(case: RunCase) -> str | None:
    if "data-starvation" in case.holding:
        return None
    if "launch-bound" in case.holding:
        return "the GPU waits for kernel launches"
    if case.gpus and all(works_lightly(gpu) for gpu in case.gpus):
        return "the GPU is busy at low power"
    means = [gpu.train_utilization.mean for gpu in case.gpus if gpu.train_utilization]
    if means and len(means) == len(case.gpus) and min(means) < BUSY_PERCENT:
        return f"the GPU is busy only {min(means):.0f}% of the time"
    return None


def _batch_that_fits(rank: RankWindow, batch: int) -> int | None:
    """The multiple of 8 that fills 90% of the memory, if activations grow with the batch and the rest does not."""
    memory, weights = rank.memory, rank.facts.model.parameter_bytes
    if memory is None or not memory.total_bytes or not memory.allocated_peak_bytes or weights is None:
        return None
    fixed = STATE_COPIES * weights
    activations = memory.allocated_peak_bytes - fixed
    if activations <= 0:
        return None
    fitting = int(batch * (FILL_SHARE * memory.total_bytes - fixed) / activations) // 8 * 8
    return fitting if fitting > batch else None
