"""Another process is using the same GPU.

Means:
    Two programs take turns on the GPU and share its memory; utilization, power, heat and fluctuation are then not
    this run's alone.
Evidence:
    NVML's process list: a process outside the run's own with at least 5% of the GPU's time or 5% of its memory.
    Without a hooked run: two such processes.
Fires:
    For 15 s.
Clears:
    Gone.
Not when:
    The display server, the run's own evaluation process, sharing by design (MPS). Where process ids cannot be mapped
    from inside a container, nothing is claimed. It does not wait for a full minute: other readings are affected from
    the first one on.
Causes:
    A second job, a notebook that keeps its context, an inference server, or a desktop.
Fix:
    Another GPU, or exclusive process mode.
Gain:
    Unknown: nothing was measured of this run alone. Findings from utilization, power and heat count one level less.
Verify:
    The other process is gone.
Source:
    NVML process utilization.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Draft, Fix, Level, Measure, Severity
from gpuwatch.diagnosis.rule import GpuCase, gpu_name, rule
from gpuwatch.diagnosis.thresholds import threshold
from gpuwatch.numbers import gibibytes, listed
from gpuwatch.samples import GpuProcess

FIFTEEN_SECONDS = 3  # evaluations, 5 s apart


@dataclass(frozen=True, slots=True)
class Thresholds:
    sm_percent: float = threshold(5.0, "of the GPU that a foreign process uses: reported from here on")
    memory_share: float = threshold(0.05, "or of its memory")


@rule(
    "shared-gpu",
    family="sharing",
    subject="gpu",
    level=Level.E0,
    gated=False,
    fire_after=FIFTEEN_SECONDS,
    thresholds=Thresholds,
)
def shared_gpu(case: GpuCase, limits: Thresholds) -> Draft | None:
    status = case.gpu.latest_status
    if status is None or not status.processes:
        return None
    heavy = [process for process in status.processes if _is_heavy(process, case, limits)]
    own = {rank.facts.pid for rank in case.run.ranks} if case.run else set()
    if case.run is not None:
        if not any(process.pid in own for process in status.processes):
            return None
        others = [process for process in heavy if process.pid not in own]
    else:
        others = heavy if len(heavy) >= 2 else []
    if not others:
        return None
    names = listed(f"{process.command or 'process'} ({process.pid or process.host_pid})" for process in others[:3])
    return Draft(
        summary=f"{gpu_name(case.gpu)} is shared with {names}"
        if case.run
        else f"{gpu_name(case.gpu)} is shared by {names}",
        severity=Severity.INFO,
        level=Level.E0,
        evidence=tuple(
            Measure(
                f"pid_{process.pid or process.host_pid}_sm_percent",
                process.sm_percent,
                f"{process.command or 'process'} ({process.pid or process.host_pid}): "
                + (f"{process.sm_percent:.0f}% of the time" if process.sm_percent is not None else "time not reported")
                + (f", {gibibytes(process.memory_bytes)}" if process.memory_bytes is not None else ""),
            )
            for process in others
        ),
        fix=Fix(text="Move one of them to another GPU, or set the GPU to exclusive process mode"),
        hint="no reading of this run alone exists to compare with",
        verify="The other process is gone for a minute",
        chart=("gpu.utilization_percent", "gpu.memory_used_bytes"),
    )


def _is_heavy(process: GpuProcess, case: GpuCase, limits: Thresholds) -> bool:
    total = case.gpu.facts.memory_total_bytes
    by_memory = bool(total and process.memory_bytes and process.memory_bytes >= limits.memory_share * total)
    return (process.sm_percent or 0.0) >= limits.sm_percent or by_memory
