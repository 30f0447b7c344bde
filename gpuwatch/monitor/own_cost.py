"""What gpuwatch itself costs: its CPU time with that of its child."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

_KEPT_NS = 60_000_000_000


def cpu_seconds(proc_root: Path = Path("/proc")) -> float:
    """CPU time of this process and its living children so far; only its own where /proc does not list them.

    The children files cost 20 us; a scan of all processes took 260 ms on a machine with 3 000.
    """
    listings = (_read(path) for path in (proc_root / "self/task").glob("*/children"))
    return time.process_time() + sum(_seconds_of(pid, proc_root) for listing in listings for pid in listing.split())


def _seconds_of(pid: str, proc_root: Path) -> float:
    fields = _read(proc_root / pid / "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def _read(path: Path) -> str:
    """The text; empty where the thread or child has ended since it was listed."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


class OwnCost:
    """CPU seconds per second of the last minute.

    Args:
        read_seconds: CPU seconds so far; smaller once a child has ended.
    """

    def __init__(self, read_seconds: Callable[[], float] = cpu_seconds) -> None:
        self._read_seconds = read_seconds
        self._readings: deque[tuple[int, float]] = deque()

    def share(self, now_ns: int) -> float | None:
        """The share of one core since the oldest reading within a minute; None at the first."""
        seconds = self._read_seconds()
        if self._readings and seconds < self._readings[-1][1]:
            self._readings.clear()
        self._readings.append((now_ns, seconds))
        while now_ns - self._readings[0][0] > _KEPT_NS:
            self._readings.popleft()
        began_ns, began = self._readings[0]
        return (seconds - began) / ((now_ns - began_ns) / 1e9) if now_ns > began_ns else None
