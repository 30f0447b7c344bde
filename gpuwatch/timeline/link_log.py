"""What the links of one GPU had to repeat lately: NVLink and PCIe, from counters that are read every 30 s."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from gpuwatch.samples import GpuHealth
from gpuwatch.timeline.columns import NAN, Odometer
from gpuwatch.timeline.tiers import SECOND_NS
from gpuwatch.timeline.windows import LinkErrors

COUNTERS = ("pcie_replays", "nvlink_crc_errors", "nvlink_replays", "nvlink_recoveries")
SPAN_NS = 60 * SECOND_NS
"""Limits are per minute: a single replay between two readings 30 s apart is no rate."""
_READINGS_KEPT = 64


class _Reading(NamedTuple):
    time_ns: int
    totals: tuple[float, ...]


class LinkLog:
    """The counters of some minutes, and the most links that were ever up."""

    __slots__ = ("_active", "_meters", "_most_active", "_readings")

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque(maxlen=_READINGS_KEPT)
        self._meters = {name: Odometer() for name in COUNTERS}
        self._most_active: int | None = None
        self._active: int | None = None

    def add(self, health: GpuHealth) -> None:
        """Takes one reading of the 30 s lane."""
        totals = tuple(meter.read(getattr(health, name)) for name, meter in self._meters.items())
        self._readings.append(_Reading(health.time_ns, totals))
        self._active = health.nvlink_active
        if health.nvlink_active is not None:
            self._most_active = max(self._most_active or 0, health.nvlink_active)

    def errors(self) -> LinkErrors | None:
        """The newest minute, or the little more that readings 30 s apart need to span one; None before it is over."""
        if not self._readings:
            return None
        newest = self._readings[-1]
        first = next((old for old in reversed(self._readings) if newest.time_ns - old.time_ns >= SPAN_NS), None)
        seconds = (newest.time_ns - first.time_ns) / SECOND_NS if first else 0.0
        gains = dict.fromkeys(COUNTERS, NAN)
        if first is not None:
            pairs = zip(first.totals, newest.totals, strict=True)
            gains = {name: after - before for name, (before, after) in zip(COUNTERS, pairs, strict=True)}
        lost = None if self._active is None or self._most_active is None else self._most_active - self._active
        if first is None and lost is None:
            return None
        known = {name: None if gain != gain else gain for name, gain in gains.items()}
        replays, crc = known["pcie_replays"], known["nvlink_crc_errors"]
        return LinkErrors(
            seconds=seconds,
            pcie_replays_per_minute=None if replays is None else 60.0 * replays / seconds,
            nvlink_crc_errors_per_second=None if crc is None else crc / seconds,
            nvlink_replays=_whole(known["nvlink_replays"]),
            nvlink_recoveries=_whole(known["nvlink_recoveries"]),
            nvlink_lost=lost,
        )


def _whole(gain: float | None) -> int | None:
    return None if gain is None else round(gain)
