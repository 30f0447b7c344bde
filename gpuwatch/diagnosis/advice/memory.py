"""How short of memory the machine is, or the run's container."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwatch.diagnosis.finding import Measure
from gpuwatch.diagnosis.rule import RunCase
from gpuwatch.diagnosis.wording import gibibytes, percent

SHORT_SHARE, CLEAR_SHARE = 0.10, 0.20
PLENTY_BYTES = 64 * 2**30
"""A tenth of a machine of 2 TB is no shortage."""
FULL_SHARE, CLEAR_FULL_SHARE = 0.90, 0.80
PRESSURE_PERCENT, CLEAR_PRESSURE_PERCENT = 10.0, 5.0
FAULTS_PER_SECOND = 500.0
SWAP_BYTES_PER_SECOND = 2**20


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """The signs of it, worst first, and whether they are more than a warning of what comes."""

    signs: tuple[Measure, ...]
    is_short: bool
    missing_bytes: int  # until a fifth is free again


def memory_shortage(case: RunCase) -> MemoryShortage | None:
    """What speaks for one; None where there is enough memory, or nothing is known.

    Faults and swapping count only where little is free: a file that is mapped and read for the first time faults as
    well, with all memory in the world.
    """
    host = case.host
    process = case.run.critical.process
    own = process.latest if process else None
    signs: list[Measure] = []
    is_short = is_low = False
    missing = 0
    if host is not None and host.memory_available_share is not None:
        share, total = host.memory_available_share, host.latest.memory_total_bytes
        if share < CLEAR_SHARE and (total is None or share * total < PLENTY_BYTES):
            is_low, is_short = True, share < SHORT_SHARE
            missing = round((CLEAR_SHARE - share) * total) if total else 0
            signs.append(Measure("memory_available_share", round(share, 4), f"{percent(share)} of the memory is free"))
    if own is not None and own.cgroup_memory_limit_bytes and own.cgroup_memory_used_bytes is not None:
        limit, used = own.cgroup_memory_limit_bytes, own.cgroup_memory_used_bytes
        if used >= CLEAR_FULL_SHARE * limit:
            is_low, is_short = True, is_short or used > FULL_SHARE * limit
            missing = max(missing, round(used - CLEAR_FULL_SHARE * limit))
            text = f"{gibibytes(used)} of the container's {gibibytes(limit)} are used"
            signs.append(Measure("cgroup_memory_share", round(used / limit, 4), text))
    pressure = host.pressure_memory_percent if host else None
    if pressure is not None and pressure >= CLEAR_PRESSURE_PERCENT:
        is_short = is_short or pressure >= PRESSURE_PERCENT
        signs.append(Measure("pressure_memory_percent", round(pressure, 1), f"memory pressure {pressure:.0f} %"))
    if host is not None and is_low:
        faults, swapped = host.major_faults_per_second, host.swap_in_bytes_per_second
        if faults is not None and faults > FAULTS_PER_SECOND:
            is_short = True
            signs.append(
                Measure("major_faults_per_second", round(faults), f"{faults:.0f} pages a second are read again")
            )
        if swapped is not None and swapped > SWAP_BYTES_PER_SECOND:
            is_short = True
            text = f"{swapped / 2**20:.1f} MiB a second come back from swap"
            signs.append(Measure("swap_in_bytes_per_second", round(swapped), text))
    return MemoryShortage(tuple(signs), is_short, missing) if signs else None
