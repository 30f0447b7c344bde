"""Builds gap_recorder.c and runs it in a thread of this process: every pause that the process did not make itself."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
THRESHOLD_SECONDS = 20e-6
THRESHOLD_WITH_PAGES_SECONDS = 200e-6  # 16 page faults take 40 us on a virtual machine
CAPACITY = 1 << 16


def compiler() -> str | None:
    """The C compiler, or None where there is none."""
    return shutil.which("cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """The shared library, built into the folder."""
    library = folder / "gap_recorder.so"
    command = [compiler() or "cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True, slots=True)
class Pauses:
    """What one block saw."""

    seconds: float
    lengths_seconds: tuple[float, ...]
    loops_per_second: float  # also tells of pauses below the threshold

    @property
    def per_second(self) -> float:
        return len(self.lengths_seconds) / self.seconds

    @property
    def share(self) -> float:
        """Of the block's time, in pauses."""
        return sum(self.lengths_seconds) / self.seconds


class Recorder:
    """The library, loaded."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.record.restype = ctypes.c_int64
        number, numbers = ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
        self._library.record.argtypes = [number, number, number, number, numbers, number, numbers]
        self._room = (ctypes.c_int64 * (2 * CAPACITY))()

    def pin(self, cpu: int) -> None:
        """Puts the calling thread on one CPU."""
        if self._library.pin(cpu):
            raise OSError(f"this thread cannot be put on CPU {cpu}")

    def record(self, seconds: float, pages: int = 0, maps_per_second: float = 0.0) -> Pauses:
        """Every pause of the calling thread over the threshold; it runs nothing else, and the GIL is released.

        With `pages` it maps memory this many times a second, as often as it can where that is 0.
        """
        loops = ctypes.c_int64()
        threshold_ns = round((THRESHOLD_WITH_PAGES_SECONDS if pages else THRESHOLD_SECONDS) * 1e9)
        end_ns = time.monotonic_ns() + round(seconds * 1e9)
        interval_ns = round(1e9 / maps_per_second) if maps_per_second else 0
        count = self._library.record(
            end_ns, threshold_ns, pages, interval_ns, self._room, CAPACITY, ctypes.byref(loops)
        )
        if not 0 <= count <= CAPACITY:
            raise OverflowError(f"{count} pauses in {seconds} s: more than the recorder keeps")
        lengths = tuple(self._room[2 * index + 1] / 1e9 for index in range(count))
        return Pauses(seconds, lengths, loops.value / seconds)
