"""GPU memory has errors.

Means:
    Uncorrected errors mean wrong numbers were read; a failed or pending row remapping means the memory waits for, or
    is beyond, repair. Corrected errors alone are normal.
Evidence:
    The driver's volatile error counters, row remapping state, retired pages.
Fires:
    Critical: an uncorrected error, a remapping that failed or is pending, 63 retired pages or more, 512 uncorrectable
    remapped rows or more. Information: 10 retired pages, over 50 million corrected errors.
Clears:
    After a reset.
Not when:
    Consumer cards have no ECC: nothing is claimed there.
Causes:
    Errors that could not be corrected, rows that are to be remapped with the next reset, or remapping that has no
    rows left.
Fix:
    Stop work and let an administrator reset the GPU; replace it when remapping failed.
Gain:
    None in speed: it keeps results right and the job alive.
Verify:
    The counters do not grow.
Source:
    DCGM@72fa3fea DcgmGPUHardwareLimits.h (15, 63, 512); facebookresearch/gcm@1b7bde9 (10; 5e7).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.samples import GpuHealth


@dataclass(frozen=True, slots=True)
class Thresholds:
    critical_retired_pages: int = threshold(63, "from here on they are critical", bounded_by="retired_pages")
    retired_pages: int = threshold(10, "reported from here on")
    critical_remapped_rows: int = threshold(512, "for uncorrectable errors: critical from here on")
    corrected_errors: int = threshold(50_000_000, "since the driver was loaded: reported above this")


@rule("ecc-or-remap", family="health", subject="gpu", level=Level.E0, gated=False, fire_after=1, thresholds=Thresholds)
def ecc_or_remap(case: GpuCase, limits: Thresholds) -> Draft | None:
    health = case.gpu.latest_health
    if health is None:
        return None
    bad, notable = _critical(health, limits), _notable(health, limits)
    if not bad and not notable:
        return None
    found = bad or notable
    return Draft(
        summary=f"{gpu_name(case.gpu)} has memory errors: {found[0].text}",
        severity=Severity.CRITICAL if bad else Severity.INFO,
        level=Level.E0,
        evidence=(*bad, *notable),
        fix=Fix(
            text="Replace the GPU: its memory can no longer be repaired"
            if health.remap_failed
            else "Stop work on it and reset it (nvidia-smi --gpu-reset), then watch the counters"
            if bad
            else "No action yet: watch the counters"
        ),
        verify="The counters do not grow after a reset",
    )


def _critical(health: GpuHealth, limits: Thresholds) -> tuple[Measure, ...]:
    retired, remapped = health.retired_pages, health.remapped_rows_uncorrectable
    checks = (
        (bool(health.remap_failed), Measure("remap_failed", "yes", "row remapping failed")),
        (
            bool(health.ecc_uncorrected_volatile),
            Measure(
                "ecc_uncorrected_volatile",
                health.ecc_uncorrected_volatile,
                f"{health.ecc_uncorrected_volatile} uncorrected errors since the driver was loaded",
            ),
        ),
        (bool(health.remap_pending), Measure("remap_pending", "yes", "a row remapping waits for a reset")),
        (
            (retired or 0) >= limits.critical_retired_pages,
            Measure("retired_pages", retired, f"{retired} retired pages"),
        ),
        (
            (remapped or 0) >= limits.critical_remapped_rows,
            Measure("remapped_rows_uncorrectable", remapped, f"{remapped} rows remapped after uncorrectable errors"),
        ),
    )
    return tuple(measure for present, measure in checks if present)


def _notable(health: GpuHealth, limits: Thresholds) -> tuple[Measure, ...]:
    retired, corrected = health.retired_pages or 0, health.ecc_corrected_volatile or 0
    checks = (
        (
            limits.retired_pages <= retired < limits.critical_retired_pages,
            Measure("retired_pages", retired, f"{retired} retired pages"),
        ),
        (
            corrected > limits.corrected_errors,
            Measure("ecc_corrected_volatile", corrected, f"{corrected} corrected errors"),
        ),
    )
    return tuple(measure for present, measure in checks if present)
