"""Builds snapshots for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from gpuwatch.monitor.snapshot import GpuNow, Origin, RunNow, Snapshot
from gpuwatch.samples import GpuFacts, GpuHealth, GpuSample, GpuStatus

SECOND = 1_000_000_000
GIB = 1024**3


def gpu(index: int = 0, *, status: str = "live", facts: dict[str, Any] | None = None, **latest: Any) -> GpuNow:
    """An H100 at 400 of 700 W, 58%; keywords are fields of its latest sample."""
    reading: dict[str, Any] = {
        "utilization_percent": 58.0,
        "power_watts": 400.0,
        "memory_used_bytes": 60 * GIB,
        "temperature_celsius": 61.0,
        "sm_clock_mhz": 1755.0,
    }
    usual: dict[str, Any] = {
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total_bytes": 80 * GIB,
        "power_limit_watts": 700.0,
    }
    uuid = f"GPU-{index}"
    return GpuNow(
        facts=GpuFacts(time_ns=0, uuid=uuid, **(usual | (facts or {}))),
        status=status,  # type: ignore[arg-type]
        latest=GpuSample(time_ns=0, uuid=uuid, **(reading | latest)),
        latest_status=GpuStatus(time_ns=0, uuid=uuid, memory_clock_mhz=2619.0),
        latest_health=GpuHealth(time_ns=0, uuid=uuid),
    )


def run(pid: int = 4711, **fields: Any) -> RunNow:
    """A training with steps of 312 ms that waits 41%."""
    usual: dict[str, Any] = {
        "id": f"{pid}.1",
        "title": "train.py",
        "pid": pid,
        "command": ("python", "train.py"),
        "visibility": "exact",
        "state": "training",
        "ranks": (),
        "gpu_indices": (0,),
        "seconds": 60.0,
        "steps_total": 500,
        "last_step_ns": 0,
        "step_seconds_p50": 0.312,
        "wait_share": 0.41,
    }
    return RunNow(**(usual | fields))


def snapshot(*gpus: GpuNow, runs: tuple[RunNow, ...] = (), seconds: float = 60.0, **fields: Any) -> Snapshot:
    """A live machine, watched for this many seconds."""
    usual: dict[str, Any] = {
        "time_ns": round(seconds * SECOND),
        "wall_time": 0.0,
        "started_ns": 0,
        "origin": Origin("live", "LIVE"),
        "machine": None,
        "nvml": None,
        "host": None,
        "gpus": gpus,
        "runs": runs,
        "findings": (),
        "scene": None,
    }
    return Snapshot(**(usual | fields))
