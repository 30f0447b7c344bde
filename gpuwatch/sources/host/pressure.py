"""Pressure stall information: how much tasks wait for CPU, storage and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuwatch.sources.host.procfs import read_once


@dataclass(frozen=True, slots=True)
class Pressure:
    """Share of the last 10 s in which some task waited; None where the kernel keeps no account."""

    cpu_percent: float | None = None
    io_percent: float | None = None
    memory_percent: float | None = None


def parse_some_avg10(raw: bytes | None) -> float | None:
    """`avg10` of the "some" line."""
    if raw is None:
        return None
    for line in raw.split(b"\n"):
        words = line.split()
        if words[:1] == [b"some"]:
            for word in words[1:]:
                key, _, value = word.partition(b"=")
                if key == b"avg10":
                    try:
                        return float(value)
                    except ValueError:
                        return None
    return None


def read_pressure(proc_root: Path) -> Pressure:
    """The three pressures of the whole machine; kernels before 4.20 or booted with psi=0 have none."""
    return Pressure(
        *(parse_some_avg10(read_once(f"{proc_root}/pressure/{name}", 512)) for name in ("cpu", "io", "memory"))
    )
