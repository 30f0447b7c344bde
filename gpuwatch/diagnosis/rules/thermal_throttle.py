"""The GPU is too hot and lowers its clock.

Means:
    The driver (software slowdown) or the chip itself (hardware slowdown) trades speed for temperature.
Evidence:
    The share of time the thermal counters ran, which no poll can miss, else the share of samples with a thermal reason:
    the larger of the driver's and the chip's, as both can hold the clock at once; and the SM clock, in its lowest
    twentieth, below 95% of what it was while nothing slowed it.
Fires:
    5% of the time; critical from 25%.
Clears:
    Below 1% for five minutes.
Not when:
    The clock did not fall. An idle GPU.
Causes:
    The GPU's core or its memory, each against its own limit; dust, a fan, or a room that is too warm.
Fix:
    Airflow, fan and dust first; a power limit lowered by 10% often costs little speed; else move the job.
Gain:
    At most the clock that was lost.
Verify:
    Thermal share below 1%.
Source:
    DCGM warns at any thermal violation in the last minute.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity, share_measure
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent
from gpuwatch.timeline.windows import GpuWindow

FIVE_MINUTES = 60  # evaluations, 5 s apart
WHO = {"sw-thermal": "by the driver", "hw-thermal": "by the chip"}


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.05, "of the time that heat holds the clocks back: reported from here on")
    critical_share: float = threshold(0.25, "critical from here on", bounded_by="fire_share")
    clear_share: float = threshold(0.01, "until it does less", bounded_by="fire_share")
    clock_share: float = threshold(0.95, "of the cool clock: one that stays above has lost nothing")


@rule(
    "thermal-throttle",
    family="power",
    subject="gpu",
    level=Level.E0,
    gated=False,
    clear_after=FIVE_MINUTES,
    thresholds=Thresholds,
)
def thermal_throttle(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu = case.gpu
    reasons = {name: gpu.throttle_shares[name] for name in WHO if name in gpu.throttle_shares}
    # Both may hold it at once, so their sum is not known to be time: the longer one is what it was held at least.
    share = max(reasons.values(), default=0.0)
    kept = _clock_kept(gpu)
    if share < limits.clear_share or not _has_slowed(gpu, limits):
        return None
    temperature = gpu.temperature_celsius.max if gpu.temperature_celsius else None
    heat = f" at {temperature:.0f} C" if temperature is not None else ""
    slower = f", its clock {percent(1 - kept)} lower" if kept is not None else ""
    return Draft(
        summary=f"{gpu_name(gpu)} slows down {percent(share)} of the time because of heat{heat}{slower}",
        severity=Severity.CRITICAL if share >= limits.critical_share else Severity.WARNING,
        level=Level.E0,
        evidence=(
            share_measure("thermal_share", share, "thermally throttled"),
            *(share_measure(f"{name.replace('-', '_')}_share", held, WHO[name]) for name, held in reasons.items()),
            *_clock_measures(gpu),
        ),
        fires=share >= limits.fire_share,
        fix=Fix(text="Check airflow, fans and room temperature; a power limit 10% lower often costs little speed"),
        gain=Gain(1.0, round(1.0 / kept, 2), cap="where the GPU's clock sets the pace") if kept else None,
        ruled_out=_ruled_out(gpu, limits),
        verify="Thermal share below 1%, clock back",
        chart=("gpu.temperature_celsius", "gpu.sm_clock_mhz"),
    )


def _ruled_out(gpu: GpuWindow, limits: Thresholds) -> tuple[RuledOut, ...]:
    held = gpu.throttle_shares.get("power")
    if held is None or held >= limits.fire_share:
        return ()
    return (RuledOut("the power limit", f"it held the clock {percent(held)} of the time"),)


def _has_slowed(gpu: GpuWindow, limits: Thresholds) -> bool:
    """Whether the clock fell while heat held it, as far as is known: the mean hides it in the time it was free."""
    if gpu.sm_clock_mhz is None or not gpu.sm_clock_cool_mhz:
        return True
    return gpu.sm_clock_mhz.p5 < limits.clock_share * gpu.sm_clock_cool_mhz


def _clock_kept(gpu: GpuWindow) -> float | None:
    if gpu.sm_clock_mhz is None or not gpu.sm_clock_cool_mhz:
        return None
    return gpu.sm_clock_mhz.mean / gpu.sm_clock_cool_mhz


def _clock_measures(gpu: GpuWindow) -> tuple[Measure, ...]:
    measures = []
    if gpu.temperature_celsius is not None:
        hottest = gpu.temperature_celsius.max
        measures.append(Measure("temperature_celsius", hottest, f"up to {hottest:.0f} C"))
    if gpu.sm_clock_mhz is not None and gpu.sm_clock_cool_mhz:
        now, cool = gpu.sm_clock_mhz.mean, gpu.sm_clock_cool_mhz
        measures.append(Measure("sm_clock_mhz", round(now), f"SM clock {now:.0f} of {cool:.0f} MHz when cool"))
    return tuple(measures)
