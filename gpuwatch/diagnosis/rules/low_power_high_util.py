"""The GPU is always busy but draws little power: it is not doing heavy arithmetic.

Means:
    Utilization is the share of time in which any kernel runs, not how much work it does. A GPU that is busy all
    the time and stays far below its power limit leaves arithmetic units unused.
Evidence:
    Mean utilization >= 85% and mean power below 60% of the enforced limit over the window. On Hopper and later
    the tensor pipe's activity below 10% at 70% SM activity strengthens it.
Fires:
    Power below 60% of the limit.
Clears:
    Power above 70% of the limit.
Not when:
    The power limit was lowered, or power or heat already hold the clocks back; the run has stopped making steps.
    Memory-bound models normally run at 50-70%: where no cause below applies, this is how the model works.
Causes:
    32-bit arithmetic (amp-off, tf32-off), small kernels (compile-off, launch-bound), a batch too small
    (batch-headroom), or a model that is bound by memory, which is no fault.
Fix:
    In this order: 16-bit arithmetic (amp-off), TF32 (tf32-off), compilation (compile-off), a larger batch
    (batch-headroom). Each is its own finding when it applies.
Gain:
    A hint. Power is not speed: twice the watts is not twice the samples.
Verify:
    Power over limit and samples per second both rise.
Source:
    NVML power is a 1 s mean on Ampere and later; A100 and H100 sample a quarter of the time (arXiv 2312.02741).
    The 52% of limit in a real case: 300 of 575 W.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.compute import (
    LOW_POWER_CLEAR_SHARE,
    LOW_POWER_SHARE,
    power_share,
    trains_throughout,
    works_lightly,
)
from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent
from gpuwatch.timeline.windows import GpuWindow

THERMAL = ("sw-thermal", "hw-thermal")


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(LOW_POWER_SHARE, "of the power limit that is drawn: reported below")
    clear_share: float = threshold(LOW_POWER_CLEAR_SHARE, "until more is drawn", bounded_by="fire_share")


@rule(
    "low-power-high-util",
    family="precision",
    subject="gpu",
    level=Level.E0,
    after=("collective-hang", "step-stalled"),
    behind=("data-starvation", "clocks-locked-low"),
    fades=True,
    thresholds=Thresholds,
)
def low_power_high_util(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu = case.gpu
    share = power_share(gpu)
    if share is None or not works_lightly(gpu, limits.clear_share) or _is_stuck(case):
        return None
    assert gpu.utilization is not None and gpu.power_watts is not None
    measures = [
        Measure("utilization_percent", round(gpu.utilization.mean, 1), f"busy {gpu.utilization.mean:.0f}% of the time"),
        Measure(
            "power_watts",
            round(gpu.power_watts.mean, 1),
            f"{gpu.power_watts.mean:.0f} of {gpu.power_limit_watts:.0f} W",
        ),
        Measure("power_share", round(share, 4), f"{percent(share)} of the power limit"),
    ]
    strong = _tensor_idle(case, measures)
    return Draft(
        summary=(
            f"{gpu_name(gpu)} is busy {gpu.utilization.mean:.0f}% of the time but draws only "
            f"{gpu.power_watts.mean:.0f} of {gpu.power_limit_watts:.0f} W ({percent(share)})"
        ),
        severity=Severity.INFO,
        level=Level.E0,
        evidence=tuple(measures),
        fires=works_lightly(gpu, limits.fire_share) and trains_throughout(gpu),
        fix=Fix(text="Try 16-bit arithmetic first, then TF32, torch.compile and a larger batch; measure each alone"),
        hint="power is not speed: prove each change with samples per second",
        ruled_out=(
            *_ruled_out(gpu),
            *((RuledOut("memory-bound kernels on busy tensor cores", "the tensor cores idle"),) if strong else ()),
        ),
        verify="Power over limit and samples per second both rise",
        chart=("gpu.power_watts", "gpu.utilization_percent"),
    )


def _ruled_out(gpu: GpuWindow) -> tuple[RuledOut, ...]:
    """What else takes power away and does not: none of it holds where the draft is made, but only the known is said."""
    found = []
    held = gpu.throttle_shares
    if gpu.facts.power_limit_default_watts and "power" in held:
        words = f"the limit is the card's default and holds the clocks back {percent(held['power'])} of the time"
        found.append(RuledOut("a lowered power limit", words))
    thermal = [held[name] for name in THERMAL if name in held]
    if thermal:
        found.append(RuledOut("heat", f"it holds the clocks back {percent(max(thermal))} of the time"))
    return tuple(found)


def _is_stuck(case: GpuCase) -> bool:
    """A run without steps shows the same picture: kernels that spin in a collective draw little power."""
    if case.run is None:
        return False
    last = max((rank.last_step_ns or 0 for rank in case.run.ranks), default=0)
    return bool(last) and case.now_ns - last > 60e9


def _tensor_idle(case: GpuCase, measures: list[Measure]) -> bool:
    sm, tensor = case.gpu.sm_activity_percent, case.gpu.tensor_activity_percent
    if sm is None or tensor is None:
        return False
    measures.append(
        Measure("tensor_activity_percent", round(tensor.mean, 1), f"tensor cores active {tensor.mean:.0f}%")
    )
    return sm.mean >= 70 and tensor.mean < 10
