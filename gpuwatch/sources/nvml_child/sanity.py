"""What no GPU can mean: sentinels, absurd values, counters that run backwards.

DCGM printed 9223372036854775794 as a temperature; a monitor that passes such a value on has lied.
"""

from __future__ import annotations

from gpuwatch.metrics import COUNTER_LIMIT, GPU
from gpuwatch.sources.nvml_child.calls import Ledger


def sensible(name: str, value: float | None, ledger: Ledger) -> float | None:
    """The value of a GPU's metric, or None (counted) if it lies outside of that metric's limits."""
    if value is None:
        return None
    metric = GPU[name]
    if metric.low <= value <= metric.high:
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
        if not 0 <= value < COUNTER_LIMIT:
            self._ledger.dropped += 1
            return None
        if self._last is not None and value < self._last and (self._behind is None or value < self._behind):
            self._behind = value
            self._ledger.dropped += 1
            return None
        self._last, self._behind = value, None
        return value
