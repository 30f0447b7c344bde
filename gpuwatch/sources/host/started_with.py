"""What a training process was started with: a few environment variables, and libraries that it has mapped."""

from __future__ import annotations

import re
from pathlib import Path

from gpuwatch.sources.host.procfs import read_of, shown

VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_USE_CUDA_DSA",
)
"""All that is ever kept of an environment."""
HOOK_SILENT = "its hook is not reporting yet: steps and waits are measured exactly as soon as it does"
"""What to say, in place of the advice to start it with the hook, of one that carries it and is not linked."""
_HOOK_FOLDER = b"/gpuwatch/hook/site"
_LONGEST_VALUE = 256
_MAPS_LIMIT = 16 << 20  # vm.max_map_count lines of 130 characters are half of it
_LIBRARIES = (
    ("cv2", re.compile(rb"/(?:cv2[/.]|libopencv_core)")),
    ("openblas", re.compile(rb"/lib(?:scipy_)?openblas")),
    ("mkl", re.compile(rb"/libmkl_")),
    ("openmp", re.compile(rb"/lib(?:gomp|iomp5|omp)[-.]")),
    ("arrow", re.compile(rb"/libarrow[.]")),
    ("polars", re.compile(rb"/polars[/.]")),
    ("torch_cuda", re.compile(rb"/libtorch_cuda[._]")),
)


def read_environment(proc_root: Path | str, pid: int) -> tuple[tuple[str, str], ...] | None:
    """The variables of `VARIABLES` that the process was started with; None where that may not be read."""
    raw = read_of(proc_root, pid, "environ")
    if raw is None:
        return None
    values = ((name, variable(raw, name)) for name in VARIABLES)
    return tuple((name, shown(value[:_LONGEST_VALUE])) for name, value in values if value is not None)


def carries_hook(proc_root: Path | str, pid: int) -> bool:
    """Whether `gpuwatch run` put the hook on its PYTHONPATH and it was not turned off; False where that is unknown."""
    environment = read_of(proc_root, pid, "environ") or b""
    folders = (variable(environment, "PYTHONPATH") or b"").split(b":")
    return any(folder.endswith(_HOOK_FOLDER) for folder in folders) and not variable(environment, "GPUWATCH_DISABLE")


def variable(environment: bytes, name: str) -> bytes | None:
    """The value of a variable in /proc/PID/environ, the first one as for getenv(3); None where it is not set.

    Its entries are searched, not taken apart: a process may have a million of them.
    """
    key = b"\0" + name.encode("ascii") + b"="
    start = (b"\0" + environment).find(key)
    return environment[start + len(key) - 1 :].partition(b"\0")[0] if start >= 0 else None


def read_libraries(proc_root: Path | str, pid: int) -> tuple[str, ...] | None:
    """The libraries of `_LIBRARIES` that are mapped: 0.4 ms for a trainer's 370 mappings; None where unreadable."""
    maps = read_of(proc_root, pid, "maps", _MAPS_LIMIT)
    if not maps:
        return None
    return tuple(name for name, pattern in _LIBRARIES if pattern.search(maps))
