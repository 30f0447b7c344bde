"""How much longer one rank's GPU takes than the others', where Python runs ahead of the GPUs and so shows no wait."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gpuwatch.diagnosis.advice.compute import trains_throughout
from gpuwatch.timeline.windows import GpuWindow, RankWindow

PARTS = ("forward_share", "backward_share", "optimizer_share")
BUSY_PERCENT = 95.0
MORE_POWER = 1.04
LESS_CLOCK = 0.97
LEAST_PART = 0.10
"""Of the step: shorter parts say more of the scheduler than of the GPU."""


def seconds_per_step(rank: RankWindow, share: float | None) -> float:
    """A share of the training time as seconds of each step."""
    return (share or 0.0) * rank.train_seconds / rank.steps


def waited_for_gpu(rank: RankWindow, others: Sequence[RankWindow], gpus: Sequence[GpuWindow]) -> float:
    """Seconds of each step in which the others wait for this rank's GPU; 0 where nothing says that it is slower.

    A loop that never asks the GPU for anything launches at the GPU's pace, so each part of a step lasts as long as its
    kernels: on the slow GPU all of them longer by the same factor. The others' wait in the collective may show in
    any part, and across two, for the driver's queue holds about a thousand launches; the part that is longest
    against the others' is the one that holds none of it. That alone may be the same wait shown elsewhere, so the
    GPUs have to agree: this one is never idle, and it draws more power than those that spin in the collective, or
    its clock is lower.
    """
    own = _gpu_of(rank, gpus)
    theirs = [gpu for gpu in (_gpu_of(other, gpus) for other in others) if gpu is not None]
    if own is None or not theirs or not _is_never_idle(own) or not _differs(own, theirs):
        return 0.0
    if not all(map(trains_throughout, (own, *theirs))):
        return 0.0  # power and clock are known of the whole window only
    step = rank.train_seconds / rank.steps
    factors = []
    for part in PARTS:
        usual = median(seconds_per_step(other, getattr(other, part)) for other in others)
        if usual >= LEAST_PART * step:
            factors.append(seconds_per_step(rank, getattr(rank, part)) / usual)
    longer = max(factors, default=1.0)
    return step * (1.0 - 1.0 / longer) if longer > 1.0 else 0.0


def _gpu_of(rank: RankWindow, gpus: Sequence[GpuWindow]) -> GpuWindow | None:
    return next((gpu for gpu in gpus if gpu.facts.uuid in rank.facts.gpu_uuids), None)


def _is_never_idle(gpu: GpuWindow) -> bool:
    busy = gpu.train_utilization
    return busy is not None and busy.mean >= BUSY_PERCENT


def _differs(gpu: GpuWindow, others: Sequence[GpuWindow]) -> bool:
    power = [other.power_watts.mean for other in others if other.power_watts is not None]
    clocks = [other.sm_clock_mhz.mean for other in others if other.sm_clock_mhz is not None]
    draws_more = gpu.power_watts is not None and bool(power) and gpu.power_watts.mean >= MORE_POWER * median(power)
    is_clocked_lower = (
        gpu.sm_clock_mhz is not None and bool(clocks) and gpu.sm_clock_mhz.mean <= LESS_CLOCK * median(clocks)
    )
    return draws_more or is_clocked_lower
