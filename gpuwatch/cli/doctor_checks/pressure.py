"""Whether the kernel counts who waits for CPU, storage and memory."""

from __future__ import annotations

from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.machine import read_pressure


def check_pressure(proc_root: Path = Path("/proc")) -> Check:
    """Pressure stall information tells a full machine from a slow disk."""
    now = read_pressure(proc_root)
    details = {"cpu_percent": now.cpu_percent, "io_percent": now.io_percent, "memory_percent": now.memory_percent}
    if now.cpu_percent is None and now.io_percent is None and now.memory_percent is None:
        return Check(
            "pressure",
            State.WARNING,
            "The kernel keeps no pressure accounts (PSI), so whether workers wait for CPU or storage is judged by "
            "their states alone.",
            "Boot a kernel of 4.20 or later with `psi=1`.",
            details,
        )
    numbers = ", ".join(
        f"{name} {value:.0f} %"
        for name, value in (("CPU", now.cpu_percent), ("storage", now.io_percent), ("memory", now.memory_percent))
        if value is not None
    )
    return Check("pressure", State.OK, f"The kernel counts waiting; in the last 10 s: {numbers}.", None, details)
