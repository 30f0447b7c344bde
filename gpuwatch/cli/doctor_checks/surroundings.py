"""Whether we sit in a container or in WSL, and what can not be seen from there."""

from __future__ import annotations

import os
from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.machine import in_container
from gpuwatch.sources.host.procfs import read_once


def check_surroundings(proc_root: Path = Path("/proc")) -> Check:
    """A container hides the pids that the driver reports; WSL hides what each process holds on the GPU."""
    kernel = (read_once(f"{proc_root}/sys/kernel/osrelease") or b"").lower()
    container, wsl = in_container(proc_root), b"microsoft" in kernel
    own_pids = _has_own_pids(proc_root)
    details = {"container": container, "wsl": wsl, "own_pid_namespace": own_pids}
    if wsl:
        return Check(
            "surroundings",
            State.WARNING,
            "This is WSL: its driver does not report the GPU memory of single processes.",
            "Read the memory of a run from its own allocator, which the hook reports (`gpuwatch run`).",
            details,
        )
    if own_pids:
        return Check(
            "surroundings",
            State.WARNING,
            "This container numbers its processes itself, and the driver reports the host's numbers: whose "
            "process holds a GPU may be unknown.",
            "Start the container with `--pid=host`, or run gpuwatch on the host.",
            details,
        )
    if container:
        return Check("surroundings", State.OK, "This is a container that shares the host's pids.", None, details)
    return Check("surroundings", State.OK, "This is neither a container nor WSL.", None, details)


def _has_own_pids(proc_root: Path) -> bool:
    """The first pid namespace has a fixed inode number, PROC_PID_INIT_INO."""
    try:
        return os.readlink(f"{proc_root}/self/ns/pid") != "pid:[4026531836]"  # noqa: PTH115 - it names no file
    except OSError:
        return False
