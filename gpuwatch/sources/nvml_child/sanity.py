"""What no GPU can mean: sentinels, absurd values, counters that run backwards.

DCGM printed 9223372036854775794 as a temperature; a monitor that passes such a value on has lied.
"""

from __future__ import annotations

from gpuwatch.sources.nvml_child.calls import Ledger

LIMITS: dict[str, tuple[float, float]] = {
    "utilization_percent": (0, 100),
    "memory_utilization_percent": (0, 100),
    "power_watts": (0, 20_000),
    "memory_used_bytes": (0, 1 << 50),
    "memory_total_bytes": (1, 1 << 50),
    "temperature_celsius": (-50, 200),
    "memory_temperature_celsius": (-50, 200),
    "sm_clock_mhz": (0, 20_000),
    "memory_clock_mhz": (0, 50_000),
    "sm_clock_max_mhz": (1, 20_000),
    "memory_clock_max_mhz": (1, 50_000),
    "application_clock_mhz": (1, 20_000),
    "nvlink_count": (0, 64),
    "nvlink_active": (0, 64),
    "fan_percent": (0, 200),  # NVML: may exceed 100
    "performance_state": (0, 15),
    "pcie_generation": (1, 15),
    "pcie_width": (1, 32),
    "pcie_generation_max": (1, 15),
    "pcie_width_max": (1, 32),
    "power_limit_watts": (1, 20_000),
    "power_limit_default_watts": (1, 20_000),
    "sm_activity_percent": (0, 100.5),
    "tensor_activity_percent": (0, 100.5),
    "dram_activity_percent": (0, 100.5),
    "event_reasons": (0, (1 << 32) - 1),
}

_COUNTER_LIMIT = 1 << 62


def sensible(name: str, value: float | None, ledger: Ledger) -> float | None:
    """The value, or None (counted) if it lies outside what its name allows."""
    if value is None:
        return None
    low, high = LIMITS.get(name, (0, _COUNTER_LIMIT))
    if low <= value <= high:
        return value
    ledger.dropped += 1
    return None


class Counter:
    """One growing counter. A single value below the last one is dropped, a second one is a reset."""

    __slots__ = ("_behind", "_last", "_ledger")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: int | None = None
        self._behind: int | None = None

    def take(self, value: int | None) -> int | None:
        """The value, or None (counted) for a sentinel or a value that ran backwards once."""
        if value is None:
            return None
        if not 0 <= value < _COUNTER_LIMIT:
            self._ledger.dropped += 1
            return None
        if self._last is not None and value < self._last and (self._behind is None or value < self._behind):
            self._behind = value
            self._ledger.dropped += 1
            return None
        self._last, self._behind = value, None
        return value
