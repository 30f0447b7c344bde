"""The code asks the GPU for a number every step (.item(), .cpu(), synchronize()), so Python cannot run ahead.

Means:
    Such a line waits until the GPU has done all that was queued. Until the next launch arrives the GPU then has
    nothing to do.
Evidence:
    The share of the training thread's samples that are in such a line, named with its text, and the idle time of the
    GPU that no wait for data explains. What can be recovered is at most the smaller of the two: the time inside the
    line itself is GPU computing and no waste (100 ms in .item() behind a busy GPU cost nothing). Loading in the
    training thread (num_workers=0) is work that queued kernels would hide: the idle time it causes counts as well.
Fires:
    5% can be recovered; a warning from 10%, as far as the loader keeps up. Where utilization is not known, a hint
    from 10% of the samples.
Clears:
    Below 3%.
Not when:
    The GPU is busy, or the run computes on the CPU, where nothing is queued and nothing can be recovered. Stacks
    cannot be read. Mixed precision's scaler and gradient clipping wait by themselves.
Causes:
    A number that is read in every step, or an explicit torch.cuda.synchronize(). Without workers that exposes the
    loading that was hidden behind the GPU's queue; with a busy thread it exposes the launches.
Fix:
    Keep a running sum on the device, and ask for it every k-th step.
Gain:
    At most 1 / (1 - r), r being the highest value that the samples allow; at least three quarters of r where the
    training thread loads by itself, half of it with workers, nothing where copies from pageable memory or other ranks
    make the thread wait as well. Published: 1.04x, 1.05x (152 to 145 ms a step), 1.05-1.10x; an explicit synchronize 25
    %.
Verify:
    The line's share is down, utilization and samples per second are up.
Source:
    PyTorch's tuning guide; LANfactory#120, fairchem#2203, fvdb, KPConv; counter-example pytorch#63618.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwatch.diagnosis.advice.cost import spun_share
from gpuwatch.diagnosis.advice.fixes import logging_edit
from gpuwatch.diagnosis.advice.gains import from_share, within_loader, without
from gpuwatch.diagnosis.advice.lines import HotLine, at, hottest_of_thread, watched, with_interval
from gpuwatch.diagnosis.advice.rivals import idle_rivals
from gpuwatch.diagnosis.advice.sampled import SAMPLES, enough, phase_samples, share_of, train_samples, trains_on
from gpuwatch.diagnosis.advice.starvation import (
    Starvation,
    idle_outside_waits,
    idle_range,
    idle_share,
    starvation_of,
    train_busy_percent,
)
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import RunCase, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import ordinal, percent
from gpuwatch.samples import LoaderFacts
from gpuwatch.timeline.windows import Share, StackWindow

TARGET_SHARE = 0.01
LEAST_TIMES = 10
OVERLAPPED, OVERLAPPED_BESIDE_WORKERS = 0.75, 0.5
"""Of what the wait exposes of loading in the training thread, what the GPU's queue hides again at least: in simulation
all of it. With workers the idle time may have other causes."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the time could be recovered: reported from here on")
    clear_share: float = threshold(0.03, "until less could", bounded_by="fire_share")
    warning_share: float = threshold(0.10, "a warning from here on", bounded_by="fire_share")


@rule(
    "sync-per-step",
    family="launch",
    subject="run",
    level=Level.E3,
    after=("data-starvation",),
    behind=("data-starvation",),
    fades=True,
    thresholds=Thresholds,
)
def sync_per_step(case: RunCase, limits: Thresholds) -> Draft | None:
    stacks = enough(case.run.critical)
    if stacks is None or train_samples(stacks) < SAMPLES or trains_on(case) != "cuda":
        return None
    asking = share_of(phase_samples(stacks, "sync"), train_samples(stacks))
    busy, starvation = train_busy_percent(case), starvation_of(case)
    line = hottest_of_thread(stacks, "sync")
    if line is None:
        return None
    if busy is None:
        return _hint(stacks, asking, line, limits, case.run.critical.train_loader)
    if _loads_itself(case):
        starvation, idle = None, 1.0 - busy / 100.0
    else:
        idle = idle_outside_waits(case.run.critical, starvation, busy)
    share = min(asking.value, idle)
    if share < limits.clear_share:
        return None
    likely = within_loader(case, from_share(0.0, share))
    possible = _gain(case, starvation, asking, idle)
    gain = within_loader(case, possible)
    return Draft(
        summary=(
            f"The GPU idles {percent(idle)} of the time{_beside(case)}, and the training thread spends "
            f"{percent(asking.value)} asking it for numbers{at(line.file, line.line)}"
        ),
        severity=Severity.WARNING if likely.high >= round(without(limits.warning_share), 3) else Severity.INFO,
        level=Level.E1,
        evidence=(
            _asking(stacks, asking),
            line.measure("hot_line", "that"),
            Measure("utilization_percent", round(busy, 1), f"GPU {busy:.0f}% busy in training"),
            Measure("recoverable_share", round(share, 4), f"at most {percent(share)} can be recovered"),
        ),
        fires=share >= limits.fire_share,
        fix=_fix(asking, line, case.run.critical.train_loader),
        gain=gain,
        ruled_out=(
            *((RuledOut("waiting for data", f"that explains {percent(starvation.share)}"),) if starvation else ()),
            *idle_rivals(case, "waiting for data", "launches"),
        ),
        verify="The line's share is down, utilization and samples per second are up",
        chart=("gpu.utilization_percent", "run.samples_per_second"),
    )


def _certain_part(case: RunCase) -> float:
    """Of what can be recovered, what surely is.

    Nothing where something else makes the thread wait for the GPU in each step: other ranks, or copies from pageable
    memory. However short these are, they are so because the thread has just waited: without that they wait as long.
    """
    if _loads_itself(case):
        return OVERLAPPED
    loader, copying = case.run.critical.train_loader, case.run.critical.copy_share or 0.0
    copies_wait = loader is not None and loader.pin_memory is False and copying > 0.0
    return 0.0 if copies_wait or len(case.run.ranks) > 1 else OVERLAPPED_BESIDE_WORKERS


def _gain(case: RunCase, starvation: Starvation | None, asking: Share, idle: float) -> Gain:
    """As much of the GPU's idle time as the samples may have stood in such a line."""
    apart, whole = None if starvation is None else idle_range(case, starvation), idle_share(case)
    reach = whole.high - whole.value if whole is not None else 0.0
    most_idle = max(idle, apart[1] if apart is not None else idle + reach)
    waits = starvation_of(case) if _loads_itself(case) else None
    if waits is not None:  # a queue hides what the other ranks load as well
        most_idle += spun_share(case.run, waits)
    certain = _certain_part(case) * min(asking.low, idle)
    return from_share(certain, min(asking.high, most_idle), "to the extent that the GPU idles because of it")


def _loads_itself(case: RunCase) -> bool:
    """Whether batches are made in the training thread, which could do so while the GPU works through its queue."""
    loader = case.run.critical.train_loader
    return loader is not None and loader.num_workers == 0


def _beside(case: RunCase) -> str:
    return (
        " while batches are made and kernels launched" if _loads_itself(case) else " in addition to the waits for data"
    )


def _hint(
    stacks: StackWindow, asking: Share, line: HotLine, limits: Thresholds, loader: LoaderFacts | None
) -> Draft | None:
    """The same where the GPU's idle time is not known: whether the waits cost anything is not known either."""
    if asking.value < limits.fire_share:
        return None
    where = at(line.file, line.line)
    return Draft(
        summary=f"The training thread spends {percent(asking.value)} asking the GPU for numbers{where}",
        severity=Severity.HINT,
        level=Level.E1,
        evidence=(_asking(stacks, asking), line.measure("hot_line", "that")),
        fires=asking.value >= limits.warning_share,
        fix=_fix(asking, line, loader),
        hint=(
            f"at most {without(asking.value):.2f}x, and nothing where the GPU is busy meanwhile, which is not known "
            "here; published gains are 1.04-1.10x"
        ),
        verify="The line's share is down, and samples per second are up",
        chart=("run.samples_per_second",),
    )


def _asking(stacks: StackWindow, asking: Share) -> Measure:
    text = f"asking for numbers takes {with_interval(asking)} of training {watched(stacks)}"
    return Measure("sync_share", round(asking.value, 4), text)


def _fix(asking: Share, line: HotLine, loader: LoaderFacts | None) -> Fix:
    times = max(LEAST_TIMES, math.ceil(asking.value / TARGET_SHARE - 1e-6))
    if line.text and "synchronize(" in line.text:
        text = (
            f"Take {line.words} out, or do it every {ordinal(times)} step only: "
            "timing and reading need it, training does not"
        )
        code = f"if step % {times} == 0:\n    torch.cuda.synchronize()"
    else:
        text = f"Read the number at {line.words} only every {ordinal(times)} step, and add up on the device in between"
        code = f"running += loss.detach()\nif step % {times} == 0:\n    log(running.item() / {times}); running.zero_()"
    return Fix(
        text=text, code=code, file=line.file, line=line.line, value=times, edit=logging_edit(line, times, loader)
    )
