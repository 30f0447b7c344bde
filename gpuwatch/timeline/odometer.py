"""Counters that only grow, except when a driver or a container restarts."""

from __future__ import annotations

from gpuwatch.timeline.columns import NAN


class Odometer:
    """A running total over a counter that a driver reload may set back."""

    __slots__ = ("_last", "resets", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.resets = 0
        self._last: float | None = None

    def read(self, counter: float | None) -> float:
        """The total after this reading; NaN where the counter was not read. A step back adds nothing."""
        if counter is None:
            return NAN
        if self._last is not None:
            if counter >= self._last:
                self.total += counter - self._last
            else:
                self.resets += 1
        self._last = counter
        return self.total
