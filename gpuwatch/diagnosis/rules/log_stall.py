"""Logging, images or metrics stop the training loop regularly.

Means:
    Printing, progress bars, TensorBoard, Weights & Biases and plots run on the training thread: while they do,
    nothing new is launched.
Evidence:
    The share of the training thread's samples that are in logging, with the line of the user's code that does it. With
    a GPU no more than the time in which it idles, for work still queued hides the rest.
Fires:
    5% of the time. Where the GPU's idle time is not known, as a hint.
Clears:
    Below 3%, or when no sample has been in logging for 1.5 times the longest interval between two so far.
Not when:
    The GPU is busy in the meantime. Waiting for a number from the GPU before it is printed is sync-per-step. Stacks
    cannot be read.
Causes:
    A number read from the GPU at each step (sync-per-step), histograms and images, or an upload that blocks: the
    hottest line says which.
Fix:
    Log every k-th step, so that it takes 1% of the time; histograms and images less often still, and in a thread.
Gain:
    At most 1 / (1 - g). The lower end leaves out the logging that remains and, with a GPU, another quarter, because its
    idle time may have other causes.
Verify:
    Logging takes less than 3% of the training thread's samples.
Source:
    wandb#8666 (40 iterations a second came down to 20); wandb#950, tensorflow#24643, apex#316.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.fixes import logging_edit
from gpuwatch.diagnosis.advice.gains import from_share, within_loader, without
from gpuwatch.diagnosis.advice.lines import HotLine, at, hottest_of_thread, watched, with_interval
from gpuwatch.diagnosis.advice.pauses import has_stopped_logging
from gpuwatch.diagnosis.advice.rivals import idle_rivals
from gpuwatch.diagnosis.advice.sampled import enough, phase_samples, share_of, trains_on
from gpuwatch.diagnosis.advice.starvation import train_busy_percent
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import ordinal, percent
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.windows import Share

TARGET_SHARE = 0.01
LEAST_TIMES = 10


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the time passes with logging: reported from here on")
    clear_share: float = threshold(0.03, "until less does", bounded_by="fire_share")


@rule("log-stall", family="phases", subject="run", level=Level.E1, thresholds=Thresholds)
def log_stall(case: RunCase, limits: Thresholds) -> Draft | None:
    stacks, device = enough(case.run.critical), trains_on(case)
    if stacks is None or device is None:
        return None
    logging = share_of(phase_samples(stacks, "log"), stacks.samples)
    busy = train_busy_percent(case) if device == "cuda" else None
    known = device == "cpu" or busy is not None
    share = logging.value if busy is None else min(logging.value, 1.0 - busy / 100.0)
    if share < limits.clear_share or has_stopped_logging(case.run.critical):
        return None
    line = hottest_of_thread(stacks, "log")
    fix = _fix(logging, line, case.run.critical.train_loader)
    return Draft(
        summary=_summary(logging.value, line),
        severity=Severity.WARNING if known else Severity.HINT,
        level=Level.E1,
        evidence=(
            Measure("log_share", round(logging.value, 4), f"logging takes {with_interval(logging)} {watched(stacks)}"),
            *((line.measure("hot_line", "the logging"),) if line is not None else ()),
            *(() if busy is None else (Measure("utilization_percent", round(busy, 1), f"GPU {busy:.0f}% busy"),)),
        ),
        fires=share >= limits.fire_share,
        fix=fix,
        gain=within_loader(case, _gain(share, fix, exact=device == "cpu")) if known else None,
        hint=None
        if known
        else f"at most {without(share):.2f}x: whether the GPU had work queued in the meantime is not known",
        ruled_out=idle_rivals(case, "phases"),
        verify="Logging takes less than 3% of the training thread's samples",
        chart=("run.samples_per_second", "gpu.utilization_percent"),
    )


def _gain(share: float, fix: Fix, *, exact: bool) -> Gain:
    """Between all of it, and all but what is left; with a GPU the idle time may have other causes, too."""
    left = 1.0 / fix.value if isinstance(fix.value, int) else 0.0
    return from_share((0.95 - left if exact else 0.75 - left) * share, share)


def _summary(share: float, line: HotLine | None) -> str:
    where = at(line.file, line.line) if line is not None else ""
    return f"Logging takes {percent(share)} of the training thread's time{where}"


def _fix(logging: Share, line: HotLine | None, loader: LoaderFacts | None) -> Fix:
    times = max(LEAST_TIMES, math.ceil(logging.value / TARGET_SHARE - 1e-6))
    where = f" at {line.words}" if line is not None else ""
    return Fix(
        text=(
            f"Log{where} only every {ordinal(times)} time; write images and histograms less often still, "
            "and upload from a thread"
        ),
        code=f"if step % {times} == 0:\n    log(...)",
        file=line.file if line is not None else None,
        line=line.line if line is not None else None,
        value=times,
        edit=logging_edit(line, times, loader),
    )
