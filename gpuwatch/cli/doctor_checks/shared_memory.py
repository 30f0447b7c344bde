"""The mount through which DataLoader workers hand over their batches."""

from __future__ import annotations

from pathlib import Path

from gpuwatch.cli.doctor_checks.check import Check, State
from gpuwatch.sources.host.machine import read_shared_memory

_NAME = "shared-memory"
_SMALL_BYTES = 1 << 30
_CURE = (
    "Start the container with `--shm-size=8g` or `--ipc=host`; in Kubernetes mount an emptyDir of medium Memory "
    "at /dev/shm."
)


def check_shared_memory(proc_root: Path = Path("/proc")) -> Check:
    """Docker gives 64 MB by default; workers that fill it die of a bus error or hang (pytorch#5040, #1355)."""
    shm = read_shared_memory(proc_root, "self")
    details = {"total_bytes": shm.total_bytes, "used_bytes": shm.used_bytes}
    if not shm.total_bytes or shm.used_bytes is None:
        sentence = "There is no /dev/shm, so DataLoader workers cannot hand over batches in shared memory."
        return Check(_NAME, State.PROBLEM, sentence, _CURE, details)
    used = shm.used_bytes / shm.total_bytes
    sentence = f"/dev/shm is {_size(shm.total_bytes)}, {100 * used:.0f} % of it used"
    if used >= 0.95:
        return Check(_NAME, State.PROBLEM, f"{sentence}: workers may crash or hang.", _CURE, details)
    if used >= 0.80:
        return Check(_NAME, State.WARNING, f"{sentence}: little is left for workers.", _CURE, details)
    if shm.total_bytes < _SMALL_BYTES:
        return Check(_NAME, State.WARNING, f"{sentence}: too little for several workers.", _CURE, details)
    return Check(_NAME, State.OK, f"{sentence}.", None, details)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
