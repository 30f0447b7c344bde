"""Steps have become slower than earlier in this run.

Means:
    The same work takes longer than it did: something was added since, or something got worse.
Evidence:
    Hook: the median step of the newest two blocks (each at least 100 settled steps and 10 s) compared with the best two
    neighbouring blocks of this run at the same batch size; and which part of the step grew.
Fires:
    Both newest blocks are 8% slower, by at least four times the usual difference between one block and the next, and 4
    % slower in the mean over their steps, for 30 s. The usual difference is known after seven blocks.
Clears:
    Less than 4%.
Not when:
    The batch size changed (the best is then forgotten), epoch starts, evaluation and other phases. Inputs that differ
    in length from batch to batch, or are made to grow, look the same: where the hook saw shapes vary, nothing is said.
    Heat, power, waits for data and a shared GPU have findings of their own, which come first.
Causes:
    The part of the step that grew at the same moment: waits, forward, backward, optimizer, copies; a clock that fell;
    memory retries; load on the host.
Fix:
    By the part that grew: waits: the loader and the storage under it; forward and backward: the GPU's clock, another
    process on it; other time: the CPU, or something that grows with the run (lists, logs, checkpoints).
Gain:
    The ratio: what was lost.
Verify:
    Less than 4% slower than the best.
Source:
    TraceML@d5cec51 (trend 8%, 3% moderate); NVRx's individual score.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, percent, seconds
from gpuwatch.timeline.windows import GpuWindow, Pace, RankWindow

THIRTY_SECONDS = 6  # evaluations, 5 s apart
CHIEF_PART = 0.5
"""Of the lost time: then it is the part that grew."""
FIXES = {
    "wait": "Its waits for data grew: check the storage and what else has used its CPU cores since then",
    "copy": "Copying its batches takes longer: check the PCIe link and the size of the batches",
    "forward": "Its forward pass takes longer: check the GPU's clock and other processes on the GPU and the CPU",
    "backward": "Its backward pass takes longer: check the GPU's clock and, with several ranks, the slowest one",
    "optimizer": "Its optimizer takes longer: check the GPU's clock and parameter groups that were added",
}
OTHER = (
    "The increase is outside of the known parts of a step: look for lists, logs or metrics that grow with the run; "
    "a loop that asks for the loss there (`loss.item()`) waits for the GPU in it, so check the GPU's clock and other "
    "processes too"
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_ratio: float = threshold(
        1.08, "times the best step time of this run: reported from here on", least=1.0, most=100.0
    )
    clear_ratio: float = threshold(1.04, "until it is lower", bounded_by="fire_ratio", least=1.0, most=100.0)
    # The best of many blocks lies two sigma low, the newest may lie one high: on a shared CPU that is 8% at times.
    noise_ratio: float = threshold(4.0, "times the noise of the step time that it grew by, at least")


@rule(
    "step-time-regression",
    family="utilization",
    subject="run",
    level=Level.E2,
    after=("data-starvation",),
    behind=(
        "thermal-throttle",
        "hw-slowdown",
        "data-starvation",
        "shared-gpu",
        "straggler-rank",
        "recompile-storm",
        "noisy-neighbour",
    ),
    fire_after=THIRTY_SECONDS,
    thresholds=Thresholds,
)
def step_time_regression(case: RunCase, limits: Thresholds) -> Draft | None:
    rank = case.run.critical
    pace, loader = rank.pace, rank.train_loader
    if pace is None or (loader is not None and (loader.batch_shapes or 1) > 1):
        return None
    ratio = pace.now.step_seconds / pace.best.step_seconds
    if ratio < limits.clear_ratio or pace.noise is None or pace.now.start_ns <= pace.best.start_ns:
        return None
    if not _takes_longer_on_average(pace, limits):
        return None
    part, grown = _chief_part(pace)
    ago = (case.now_ns - pace.best.end_ns) / 1e9
    return Draft(
        summary=(
            f"Steps of {case.run.title} take {seconds(pace.now.step_seconds)}, {percent(ratio - 1)} longer than "
            f"{seconds(ago)} ago" + (f": its {part} time grew" if part else "")
        ),
        severity=Severity.WARNING,
        level=Level.E2,
        evidence=(
            Measure("step_ratio", round(ratio, 4), f"{ratio:.2f} times its best step"),
            Measure(
                "best_step_seconds",
                round(pace.best.step_seconds, 6),
                f"best {seconds(pace.best.step_seconds)} over {grouped(pace.best.steps)} steps",
            ),
            Measure(
                "step_seconds",
                round(pace.now.step_seconds, 6),
                f"now {seconds(pace.now.step_seconds)} over {grouped(pace.now.steps)} steps, "
                "and the neighbouring block is no faster",
            ),
            Measure(
                "block_noise", round(pace.noise, 4), f"from block to block it usually differs by {percent(pace.noise)}"
            ),
            *((Measure("grown_part", part, f"{part} {seconds(grown)} longer a step"),) if part else ()),
            *_clock_measures(case.gpus),
        ),
        fires=ratio >= limits.fire_ratio and ratio - 1.0 >= limits.noise_ratio * pace.noise,
        fix=Fix(text=FIXES[part] if part else OTHER, value=part),
        gain=Gain(1.0, round(ratio, 2), cap="to the speed that the run had before"),
        ruled_out=_ruled_out(rank),
        verify="Steps less than 4% slower than the best",
        chart=("run.step_seconds", "gpu.sm_clock_mhz"),
    )


def _takes_longer_on_average(pace: Pace, limits: Thresholds) -> bool:
    """Whether the mean step grew as well.

    Where every third step waits, the two others are shorter than a step can be for long: the CPU catches up with the
    queue. Once none waits the median grows to the pace of the GPU, while steps take half as long in the mean.
    """
    before, now = pace.best.mean_step_seconds, pace.now.mean_step_seconds
    return before is None or now is None or now >= limits.clear_ratio * before


def _chief_part(pace: Pace) -> tuple[str | None, float]:
    """The part that explains most of the lost time, and by how much it grew; None where none does."""
    lost = pace.now.step_seconds - pace.best.step_seconds
    grown = {
        name: pace.now.parts_seconds[name] - seconds
        for name, seconds in pace.best.parts_seconds.items()
        if name in pace.now.parts_seconds
    }
    if not grown:
        return None, 0.0
    name = max(grown, key=lambda key: grown[key])
    return (name, grown[name]) if grown[name] >= CHIEF_PART * lost else (None, 0.0)


def _clock_measures(gpus: tuple[GpuWindow, ...]) -> tuple[Measure, ...]:
    slow = [
        gpu
        for gpu in gpus
        if gpu.sm_clock_mhz and gpu.sm_clock_cool_mhz and gpu.sm_clock_mhz.mean < gpu.sm_clock_cool_mhz
    ]
    return tuple(
        Measure(
            f"gpu_{gpu.facts.index}_sm_clock_mhz",
            round(gpu.sm_clock_mhz.mean),
            f"GPU {gpu.facts.index} at {gpu.sm_clock_mhz.mean:.0f} of {gpu.sm_clock_cool_mhz:.0f} MHz when not slowed",
        )
        for gpu in slow
        if gpu.sm_clock_mhz is not None
    )


def _ruled_out(rank: RankWindow) -> tuple[RuledOut, ...]:
    batch = rank.train_loader.batch_size if rank.train_loader else None
    inspected = rank.train_loader.batches_inspected if rank.train_loader else None
    found = [RuledOut("another batch size", f"both at {batch} samples a batch")] if batch else []
    if inspected:
        found.append(RuledOut("longer inputs", f"{inspected} inspected batches had one shape"))
    return tuple(found)
