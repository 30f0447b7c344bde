"""A simulated NVIDIA driver for tests: builds the library once, writes scenarios, reads what was called.

    driver = SimulatedDriver(folder, gpus=2)
    driver.write("fault nvmlDeviceGetFanSpeed 1 error 3", "wave 0 utilization square 5 95 0.5 0.5")
    subprocess.run(["nvitop", "--once"], env={**os.environ, **driver.env})

The scenario's words are in README.md beside this file; the library looks at the file on every call.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"
COUNT_ROW = struct.Struct("<56siIQ")
NO_GPU = -2


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path, without: Iterable[str] = ()) -> Path:
    """Compiles the library into `folder` and returns the folder; `without` hides symbols, as an old driver does."""
    folder.mkdir(parents=True, exist_ok=True)
    compiling = compiler()
    if compiling is None:
        raise RuntimeError("the simulated NVIDIA driver needs a C compiler: apt-get install gcc libc6-dev")
    hidden = "".join(f"    {name};\n" for name in without)
    symbols = folder / "symbols.map"
    symbols.write_text(f"{{ global: nvml*; {'local:' + chr(10) + hidden if hidden else ''} }};\n", encoding="utf-8")
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    partial = folder / f"{LIBRARY}.{os.getpid()}"
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", f"-Wl,--version-script={symbols}"]
    subprocess.run([compiling, *flags, "-o", str(partial), *sources, "-lm", "-lpthread"], check=True)
    partial.rename(folder / LIBRARY)
    return folder


class SimulatedDriver:
    """One machine with simulated GPUs: a scenario file, a count file, and the environment that selects them."""

    def __init__(self, folder: Path, library: Path, gpus: int = 1) -> None:
        self.scenario = folder / "scenario.txt"
        self.counts_file = folder / "counts"
        self.library = library
        self.gpus = gpus
        self.write()

    @property
    def env(self) -> dict[str, str]:
        """What a program needs in its environment to see these GPUs instead of the machine's own."""
        return {
            "LD_LIBRARY_PATH": str(self.library),
            "NVML_SIM_SCENARIO": str(self.scenario),
            "NVML_SIM_COUNTS": str(self.counts_file),
        }

    def write(self, *lines: str, gpus: int | None = None) -> None:
        """Replaces the scenario at once (rename), so that a running program never reads half of it."""
        if gpus is not None:
            self.gpus = gpus
        partial = self.scenario.with_suffix(".partial")
        partial.write_text("\n".join([f"gpus {self.gpus}", *lines, ""]), encoding="utf-8", errors="surrogateescape")
        partial.rename(self.scenario)

    def counts(self) -> dict[tuple[str, int], int]:
        """Calls so far by (function, GPU index); index NO_GPU for calls without a device."""
        if not self.counts_file.exists():
            return {}
        rows = COUNT_ROW.iter_unpack(self.counts_file.read_bytes())
        return {(name.rstrip(b"\0").decode(), gpu): calls for name, gpu, used, calls in rows if used}

    def calls(self, function: str, gpu: int | None = None) -> int:
        """Calls of one function, on one GPU or all."""
        return sum(count for (name, index), count in self.counts().items() if name == function and gpu in (None, index))

    def uuid(self, index: int) -> str:
        """The UUID a GPU has unless the scenario says otherwise."""
        return f"GPU-5eed0000-0000-4000-8000-{index:012d}"
