"""The system, the Python, and what of Linux's /proc the host source stands on."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.procfs import read_once


def check_system(proc_root: Path = Path("/proc"), system: str = sys.platform) -> Check:
    """Linux is the platform; elsewhere only what NVML and psutil give is there."""
    about = f"{platform.system()} {platform.release()} on {platform.machine()}, Python {platform.python_version()}"
    details = {"system": system, "python": sys.executable}
    if system != "linux":
        return Check(
            "system",
            State.WARNING,
            f"{about}: only GPUs and the machine as a whole can be watched, not training runs.",
            "Use Linux, or WSL2 on Windows, for training runs.",
            details,
        )
    if read_once(f"{proc_root}/self/stat") is None:
        return Check(
            "system",
            State.PROBLEM,
            f"{about}, but /proc is not mounted, so no process can be watched.",
            "Mount it: `mount -t proc proc /proc`.",
            details,
        )
    if read_once(f"{proc_root}/thread-self/children") is None:
        return Check(
            "system",
            State.WARNING,
            f"{about}, but this kernel does not list children (CONFIG_PROC_CHILDREN), so DataLoader workers of "
            "runs are not found.",
            "Use a kernel with CONFIG_PROC_CHILDREN=y, as all large distributions build it.",
            details,
        )
    return Check("system", State.OK, f"{about}.", None, details)
