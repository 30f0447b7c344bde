"""What the driver says of a GPU, as the faults of the hardware colour it."""

from __future__ import annotations

from dataclasses import replace

from gpuwatch.samples import GpuProcess, GpuSample, GpuStatus
from gpuwatch.sources.simulator.scenarios import GIB
from tests.scenarios.job import Job
from tests.scenarios.training import HOT_CLOCK_LOST, is_hot


def gpu_sample(job: Job, sample: GpuSample, time: float, index: int, brakes: int) -> GpuSample:
    """The poll of a GPU as its faults colour it."""
    for fault in job.faults:
        if time < fault.start or (fault.kind in ("heat", "brake") and fault.gpu != index):
            continue
        if fault.kind == "heat":
            hot = is_hot(time)
            slowed = (time - fault.start) // 10.0 * 3.0 + min(3.0, time % 10.0)
            sample = replace(
                sample,
                event_reasons=(sample.event_reasons or 0) | (0x20 if hot else 0),
                throttled_sw_thermal_ns=round(max(0.0, slowed) * 1e9),
                temperature_celsius=88.0 if hot else 84.0,
                sm_clock_mhz=(sample.sm_clock_mhz or 0.0) * (1.0 - HOT_CLOCK_LOST if hot else 1.0),
            )
        elif fault.kind == "brake":
            braking = (time - fault.start) % 60.0 < 2.5
            sample = replace(
                sample,
                event_reasons=(sample.event_reasons or 0) | (0x80 if braking else 0),
                throttled_power_brake_ns=round(brakes * 2.5e9),
                sm_clock_mhz=(sample.sm_clock_mhz or 0.0) * (0.5 if braking else 1.0),
            )
        elif fault.kind == "cap":
            sample = replace(sample, event_reasons=(sample.event_reasons or 0) | 0x4)
        elif fault.kind == "mig":
            reason = "not supported: MIG is on"
            sample = replace(
                sample,
                utilization_percent=None,
                memory_utilization_percent=None,
                utilization_ring=(),
                sm_activity_percent=None,
                tensor_activity_percent=None,
                unavailable={**sample.unavailable, "utilization_percent": reason},
            )
        elif fault.kind == "sensor-1s":
            values = [value for _, value in sample.utilization_ring]
            mean = round(sum(values) / len(values)) if values else sample.utilization_percent
            sample = replace(sample, utilization_percent=float(mean or 0.0), utilization_ring=())
    return sample


def gpu_status(job: Job, uuid: str, index: int, time: float, time_ns: int, busy: float, pid: int) -> GpuStatus:
    """Which processes use a GPU, and its link."""
    memory = round(job.gpu.memory_total_bytes * job.computing.memory_share)
    processes = (
        GpuProcess(pid, pid, memory - GIB // 2, busy, "python train.py"),
        *(
            GpuProcess(77_001, 77_001, 3 * GIB, 100.0 * fault.amount, "python other.py")
            for fault in job.faults
            if fault.kind == "share" and time >= fault.start
        ),
    )
    return GpuStatus(
        time_ns=time_ns,
        uuid=uuid,
        memory_clock_mhz=float(job.gpu.memory_clock_max_mhz),
        performance_state=0,
        pcie_generation=job.gpu.pcie_generation,
        pcie_width=16,
        processes=processes,
    )
