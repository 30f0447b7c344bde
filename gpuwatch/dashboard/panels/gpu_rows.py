"""Which GPUs share a row of the table, in which order the rows come, and what all GPUs are together.

Sixty-four rows say less than eight: beyond what fits, GPUs that the same process tree uses alike share one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, TypeVar

from gpuwatch.monitor.snapshot import GpuNow, GpuUse

Order = Literal["index", "worst"]
ALIKE_POINTS = 15.0
"""A GPU whose utilization is further from its group's median has a row of its own."""
HOT_CELSIUS = 85
"""The checklist's limit; above it throttling is near on all current boards."""

_WORST_FIRST: tuple[GpuUse, ...] = ("failing", "unknown", "held", "busy", "free")


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU, or several alike, in the order of their indices."""

    gpus: tuple[GpuNow, ...]

    @property
    def uuid(self) -> str:
        """What the row is remembered by: its first GPU."""
        return self.gpus[0].facts.uuid


@dataclass(frozen=True, slots=True)
class Total:
    """All GPUs, or some. A mean or a sum of which a part is unknown is None; MIG instances count with their parent."""

    gpus: int
    uses: Counter[GpuUse]
    utilization_percent: float | None
    power_watts: float | None
    power_limit_watts: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    hottest_celsius: float | None
    throttled: int


def power_limit(gpu: GpuNow) -> float | None:
    """The limit in force: the one of the 30 s lane, else the one read at start."""
    if gpu.latest_health is not None and gpu.latest_health.power_limit_watts is not None:
        return gpu.latest_health.power_limit_watts
    return gpu.facts.power_limit_watts


def utilization_of(gpu: GpuNow) -> float | None:
    """The mean of the last minute, until there is one the latest reading."""
    if gpu.utilization_mean_percent is not None or gpu.latest is None:
        return gpu.utilization_mean_percent
    return gpu.latest.utilization_percent


def power_of(gpu: GpuNow) -> float | None:
    """As the utilization."""
    if gpu.power_mean_watts is not None or gpu.latest is None:
        return gpu.power_mean_watts
    return gpu.latest.power_watts


def total_of(gpus: Sequence[GpuNow]) -> Total:
    """What the GPUs that answer are together."""
    whole = [gpu for gpu in gpus if gpu.facts.mig_parent is None]
    live = [gpu for gpu in whole if gpu.status == "live" and gpu.latest is not None]
    used = [gpu.latest.memory_used_bytes for gpu in live if gpu.latest is not None]
    warm = [gpu.latest.temperature_celsius for gpu in live if gpu.latest is not None]
    utilization = [utilization_of(gpu) for gpu in live if not gpu.facts.mig]
    return Total(
        gpus=len(whole),
        uses=Counter(gpu.use for gpu in whole if not gpu.facts.mig or gpu.use == "failing"),
        utilization_percent=fmean(known) if (known := _all(utilization)) else None,
        power_watts=_sum([power_of(gpu) for gpu in live]),
        power_limit_watts=_sum([power_limit(gpu) for gpu in live]),
        memory_used_bytes=_sum(used),
        memory_total_bytes=_sum([gpu.facts.memory_total_bytes for gpu in live]),
        hottest_celsius=max((each for each in warm if each is not None), default=None),
        throttled=sum(1 for gpu in live if gpu.throttled_by),
    )


_Number = TypeVar("_Number", int, float)


def _all(values: Sequence[_Number | None]) -> list[_Number] | None:
    known = [value for value in values if value is not None]
    return known if known and len(known) == len(values) else None


def _sum(values: Sequence[_Number | None]) -> _Number | None:
    known = _all(values)
    return sum(known) if known is not None else None


def rows_of(gpus: Sequence[GpuNow], *, order: Order = "index", collapsed: bool = False, opened: set[str]) -> list[Row]:
    """The rows of the table.

    Args:
        gpus: All of them, in the order of their indices.
        order: By index, or the failing, held and hot first.
        collapsed: Whether GPUs that are used alike share a row.
        opened: The rows that the user wants to see GPU by GPU, by their first one's UUID.
    """
    rows = [Row((gpu,)) for gpu in gpus] if not collapsed else _collapsed(gpus, opened)
    return sorted(rows, key=_badness) if order == "worst" else rows


def _collapsed(gpus: Sequence[GpuNow], opened: set[str]) -> list[Row]:
    groups: dict[tuple[object, ...], list[GpuNow]] = {}
    for gpu in gpus:
        groups.setdefault(_likeness(gpu), []).append(gpu)
    rows = []
    for members in groups.values():
        own = _outliers(members)
        alike = [gpu for gpu in members if gpu not in own]
        if len(alike) < 2 or alike[0].facts.uuid in opened:
            own, alike = members, []
        rows += [Row((gpu,)) for gpu in own]
        rows += [Row(tuple(alike))] if alike else []
    return sorted(rows, key=lambda row: row.gpus[0].facts.place)


def _likeness(gpu: GpuNow) -> tuple[object, ...]:
    """GPUs of which this is the same may share a row; what fails, and what MIG divides, never does."""
    if gpu.use == "failing" or gpu.facts.mig:
        return (gpu.facts.uuid,)
    largest = gpu.processes[0] if gpu.processes else None
    owner = None if largest is None else (largest.user, largest.command)
    return gpu.facts.name, gpu.use, owner, gpu.throttled_by


def _outliers(gpus: Sequence[GpuNow]) -> list[GpuNow]:
    known = [value for gpu in gpus if (value := utilization_of(gpu)) is not None]
    middle = median(known) if known else 0.0
    return [gpu for gpu in gpus if _is_hot(gpu) or abs((utilization_of(gpu) or 0.0) - middle) > ALIKE_POINTS]


def _is_hot(gpu: GpuNow) -> bool:
    degrees = gpu.latest.temperature_celsius if gpu.latest is not None else None
    return degrees is not None and degrees >= HOT_CELSIUS


def _badness(row: Row) -> tuple[int, bool, bool, float, int]:
    """Failing and held first; of those that work the throttled, the hot, the least used."""
    gpu = row.gpus[0]
    place = _WORST_FIRST.index(gpu.use)
    return place, not gpu.throttled_by, not _is_hot(gpu), utilization_of(gpu) or 0.0, gpu.facts.index


def numbers_of(gpus: Sequence[GpuNow]) -> str:
    """Indices as a range: "0-7", "0-3,6"."""
    indices = sorted(gpu.facts.index for gpu in gpus)
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
