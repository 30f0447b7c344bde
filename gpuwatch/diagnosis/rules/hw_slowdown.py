"""The GPU hardware has slowed itself down (power or heat emergency).

Means:
    The chip or its board halved the clock or worse, because of heat it could not shed or a signal from the power
    supply.
Evidence:
    Hardware reasons in the driver's mask (0x8 slowdown, 0x40 thermal, 0x80 power brake) at least 0.6 times a minute
    over 10 minutes, or in a tenth of the window's samples.
Fires:
    Six events in ten minutes, or a tenth of the window.
Clears:
    None for 10 minutes.
Not when:
    A single sample during a change of performance state. A brake that stays on is one event only, so its share of the
    window counts as well.
Causes:
    0x80: a power brake by the power supply or the chassis. 0x40: heat. 0x8: either of them.
Fix:
    0x80 is a signal from power supply or chassis: check cabling and the BMC log. 0x40 is heat. Take the node out.
Gain:
    Clocks fall to half or less while it lasts.
Verify:
    The driver names no hardware reason for ten minutes under load.
Source:
    gpud's hardware slowdown check, 0.6 a minute in 10 minutes; NVML's definition (a reduction by 2x or more).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import grouped, listed, percent

BITS = {0x8: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
TEN_MINUTES = 120  # evaluations, 5 s apart


@dataclass(frozen=True, slots=True)
class Thresholds:
    events: int = threshold(6, "in ten minutes: reported from here on", least=1)
    fire_share: float = threshold(0.10, "or of the window")


@rule(
    "hw-slowdown",
    family="power",
    subject="gpu",
    level=Level.E0,
    gated=False,
    clear_after=TEN_MINUTES,
    thresholds=Thresholds,
)
def hw_slowdown(case: GpuCase, limits: Thresholds) -> Draft | None:
    gpu = case.gpu
    events = {bit: gpu.reason_bit_events.get(bit, 0) for bit in BITS}
    shares = {bit: gpu.reason_bit_shares.get(bit, 0.0) for bit in BITS}
    seen = [bit for bit in BITS if events[bit] or shares[bit]]
    if not seen:
        return None
    brake = 0x80 in seen
    return Draft(
        summary=f"{gpu_name(gpu)} slows itself down: {listed(BITS[bit] for bit in seen)}",
        severity=Severity.CRITICAL,
        level=Level.E0,
        evidence=tuple(
            Measure(
                f"{BITS[bit].replace(' ', '_')}_events",
                events[bit],
                f"{BITS[bit]} {grouped(events[bit])} times in 10 min, {percent(shares[bit])} of the window",
            )
            for bit in seen
        ),
        fires=max(events.values()) >= limits.events or max(shares.values()) >= limits.fire_share,
        fix=Fix(
            text=(
                "The power supply or chassis asks for less power: check the PSU cabling and the BMC log"
                if brake
                else "The chip protects itself from heat: check fans, airflow and thermal paste, drain the node"
            )
        ),
        verify="No hardware slowdown for 10 minutes",
        chart=("gpu.sm_clock_mhz", "gpu.power_watts"),
    )
