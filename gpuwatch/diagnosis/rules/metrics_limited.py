"""This GPU does not report everything (MIG, vGPU, WSL, container), so some rules are off.

Means:
    What is missing is missing, not zero; the rules that need it stay silent.
Evidence:
    NVML answered "not supported" or "no permission" for utilization, power, memory or the process list.
Fires:
    As soon as seen.
Clears:
    The driver answers.
Not when:
    A reading that no rule needs is missing, such as the fan of a passively cooled card.
Causes:
    MIG, vGPU, WSL or a container that hides processes: the driver's own answer is the evidence.
Fix:
    The hook's own timings work everywhere: start the training with gpuwatch run. On MIG, Hopper and later, the
    instances report through GPM.
Gain:
    None in speed: other rules judge again.
Verify:
    The figures appear, and this finding is gone.
Source:
    NVML documentation (utilization is not supported with MIG; GPM from Hopper on).
"""

from __future__ import annotations

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.numbers import listed

NEEDED = {
    "utilization_percent": ("utilization", "low-util, util-fluctuation and periodic-dips"),
    "power_watts": ("power", "low-power-high-util, power-capped and collective-hang"),
    "memory_used_bytes": ("memory", "memory-near-limit"),
    "processes": ("its processes", "shared-gpu"),
}


@rule("metrics-limited", family="sharing", subject="gpu", level=Level.E0, gated=False)
def metrics_limited(case: GpuCase) -> Draft | None:
    gpu = case.gpu
    missing = {name: gpu.unavailable[name] for name in NEEDED if name in gpu.unavailable}
    if not missing or gpu.status == "lost":
        return None
    cause = " (MIG is on)" if gpu.facts.mig else ""
    return Draft(
        summary=f"{gpu_name(gpu)} does not report {listed(NEEDED[name][0] for name in missing)}{cause}",
        severity=Severity.INFO,
        level=Level.E0,
        evidence=tuple(
            Measure(name, reason, f"{NEEDED[name][0]}: {reason}; without it {NEEDED[name][1]} cannot judge")
            for name, reason in missing.items()
        ),
        fix=Fix(
            text="Start the training with the hook: its timings do not need the driver", code="gpuwatch run python ..."
        ),
        verify="The readings appear",
    )
