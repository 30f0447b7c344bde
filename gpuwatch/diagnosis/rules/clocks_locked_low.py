"""The GPU clock is fixed below what the card can do.

Means:
    Somebody set the clock (nvidia-smi -ac or -lgc) and it stayed so: the GPU neither boosts nor reports that anything
    is wrong, and every kernel takes that much longer.
Evidence:
    The driver's reason "applications clocks setting" (0x2), or an SM clock that does not move by more than 1% at less
    than 80% of the card's highest, both while the GPU is busy, cool and below its power limit.
Fires:
    For a minute at 90% utilization, below 90% of the power limit and 80 degrees.
Clears:
    The clock rises.
Not when:
    Power, heat or hardware hold the clock down (they have rules of their own); the clock is within 5% of the highest;
    MIG. A laboratory that wants equal runs locks clocks on purpose.
Causes:
    Application clocks, a lock by nvidia-smi -lgc, or clocks that an earlier user left behind.
Fix:
    An administrator resets the clock: nvidia-smi -rgc for a locked one, -rac for an application clock.
Gain:
    At most highest over present clock, where kernels are bound by it and the power limit leaves room.
Verify:
    The SM clock under load.
Source:
    NVML clocks event reasons, 0x2; Meta's GCM clock policy (30 MHz of drift warns, 75 is critical).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.advice.compute import SLOWED_SHARE, power_share
from gpuwatch.diagnosis.finding import Draft, Fix, Gain, Level, Measure, RuledOut, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import percent
from gpuwatch.timeline.windows import GpuWindow, Stats

APPLICATION_CLOCKS = 0x2
SET_SHARE = 0.9
"""Of the samples: a bit that comes and goes is no setting."""
FLAT_SHARE = 0.02
SLOWING_BITS = (0x4, 0x8, 0x20, 0x40, 0x80)
A_MINUTE = 12  # evaluations, 5 s apart


@dataclass(frozen=True, slots=True)
class Thresholds:
    fire_share: float = threshold(0.80, "of its highest clock, where the clock is flat: reported below")
    clear_share: float = threshold(0.95, "until the clock is higher", bounded_by="fire_share")
    busy_percent: float = threshold(90.0, "utilization of a GPU that could boost")
    power_share: float = threshold(0.90, "of its power limit: one that draws more is held by power")
    hot_celsius: float = threshold(80.0, "a GPU that is hotter is held by heat", most=120.0)


@rule("clocks-locked-low", family="power", subject="gpu", level=Level.E0, fire_after=A_MINUTE, thresholds=Thresholds)
def clocks_locked_low(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu = case.gpu
    clock, highest = gpu.sm_clock_mhz, gpu.facts.sm_clock_max_mhz
    power, heat = power_share(gpu), gpu.temperature_celsius
    if gpu.facts.mig or clock is None or not highest or power is None or heat is None:
        return None  # where not all of that is known the clock may be low for another reason
    if not _is_free_to_boost(gpu, power, heat.max, limits):
        return None
    kept = clock.p50 / highest
    is_set = gpu.reason_bit_shares.get(APPLICATION_CLOCKS, 0.0) >= SET_SHARE
    if kept >= limits.clear_share or not (is_set or (kept < limits.fire_share and _is_flat(clock))):
        return None
    health = gpu.latest_health
    application = health.application_clock_mhz if health else None
    return Draft(
        summary=(
            f"{gpu_name(gpu)} stays at {clock.p50:.0f} MHz although it could do {highest} MHz: "
            + ("its application clock is set" if is_set else "its clock is locked")
        ),
        severity=Severity.WARNING,
        level=Level.E0,
        evidence=(
            Measure("sm_clock_mhz", round(clock.p50), f"SM clock {clock.p5:.0f}-{clock.p95:.0f} of {highest} MHz"),
            *(
                (Measure("application_clock_mhz", application, f"application clock {application:.0f} MHz"),)
                if is_set and application is not None
                else ()
            ),
            Measure("utilization_percent", round(_busy(gpu), 1), f"{_busy(gpu):.0f}% busy"),
        ),
        fix=Fix(
            text="Unless it was set on purpose, an administrator can reset the clock",
            code=f"sudo nvidia-smi -i {gpu.facts.index} {'-rac' if is_set else '-rgc'}",
            value=highest,
        ),
        gain=Gain(1.0, round(1.0 / kept, 2), cap="where the clock sets the pace and the power limit leaves room"),
        ruled_out=(
            RuledOut("the power limit", f"it draws {percent(power)} of it"),
            RuledOut("heat", f"at most {heat.max:.0f} C"),
        ),
        verify=f"The SM clock rises towards {highest} MHz under load",
        chart=("gpu.sm_clock_mhz", "gpu.power_watts"),
    )


def _is_free_to_boost(gpu: GpuWindow, power: float, hottest_celsius: float, limits: Thresholds) -> bool:
    """Busy, cool and below its limit."""
    is_slowed = any(gpu.reason_bit_shares.get(bit, 0.0) >= SLOWED_SHARE for bit in SLOWING_BITS)
    is_slowed = is_slowed or any(share >= SLOWED_SHARE for share in gpu.throttle_shares.values())
    return (
        _busy(gpu) >= limits.busy_percent
        and power < limits.power_share
        and hottest_celsius < limits.hot_celsius
        and not is_slowed
    )


def _is_flat(clock: Stats) -> bool:
    return clock.p95 - clock.p5 <= FLAT_SHARE * clock.p50


def _busy(gpu: GpuWindow) -> float:
    return gpu.utilization.mean if gpu.utilization else 0.0
