"""The GPU is working at its power limit; clocks are trimmed to stay inside it.

Means:
    Healthy for heavy training: the GPU uses all the power that it is allowed. A limit below the card's default was set
    by somebody.
Evidence:
    The software power cap in at least half of the samples, utilization at least 90%, power at least 95% of the
    limit; the enforced limit against the default.
Fires:
    All three hold. A warning only when the limit is below 95% of the default.
Clears:
    Any of the three falls.
Not when:
    At the default limit it is no fault, only information: heavy training runs there.
Causes:
    The card's own default limit, which is healthy, or a lower one that an administrator set or a chassis shares out.
Fix:
    None when the limit is the default. Otherwise an administrator may restore it: nvidia-smi -pl.
Gain:
    A hint: speed grows more slowly than power.
Verify:
    The limit is the default again, and the SM clock is higher under load.
Source:
    NVML clocks event reasons, 0x4.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity, share_measure
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold

SOFTWARE_POWER_CAP = 0x4


@dataclass(frozen=True, slots=True)
class Thresholds:
    capped_share: float = threshold(0.5, "of the time that clocks are trimmed at least")
    busy_percent: float = threshold(90.0, "utilization at least")
    power_share: float = threshold(
        0.95, "of the power limit that is drawn at least; a limit below as much of the default is a warning"
    )


@rule("power-capped", family="power", subject="gpu", level=Level.E0, thresholds=Thresholds)
def power_capped(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu = case.gpu
    limit, default = gpu.power_limit_watts, gpu.facts.power_limit_default_watts
    if gpu.power_watts is None or gpu.utilization is None or not limit:
        return None
    capped = max(gpu.reason_bit_shares.get(SOFTWARE_POWER_CAP, 0.0), gpu.throttle_shares.get("power", 0.0))
    power = gpu.power_watts.mean
    if capped < limits.capped_share or gpu.utilization.mean < limits.busy_percent or power < limits.power_share * limit:
        return None
    lowered = bool(default and limit < limits.power_share * default)
    return Draft(
        summary=(
            f"{gpu_name(gpu)} is held at a power limit of {limit:.0f} W, below its default of {default:.0f} W"
            if lowered
            else f"{gpu_name(gpu)} is power-limited at {limit:.0f} W (normal)"
        ),
        severity=Severity.WARNING if lowered else Severity.INFO,
        level=Level.E0,
        evidence=(
            Measure("power_watts", round(power, 1), f"{power:.0f} of {limit:.0f} W"),
            share_measure("power_capped_share", capped, "clocks trimmed"),
            Measure(
                "power_limit_default_watts",
                default,
                f"default limit {default or 0:.0f} W" if default else "default limit not known",
            ),
        ),
        fix=Fix(
            text="An administrator can restore the default limit, if nothing else asked for less",
            code=f"nvidia-smi -i {gpu.facts.index} -pl {default:.0f}",
            value=default,
        )
        if lowered
        else None,
        hint="speed grows more slowly than power" if lowered else None,
        verify="Power and samples per second rise" if lowered else "nothing to do",
        chart=("gpu.power_watts", "gpu.sm_clock_mhz"),
    )
