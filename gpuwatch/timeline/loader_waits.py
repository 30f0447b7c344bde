"""Which of several training loaders a loop waits for."""

from __future__ import annotations

import math

from gpuwatch.timeline.tiers import SECOND_NS

_FADING_NS = 60 * SECOND_NS
_CLEARLY = 1.5  # times the waits of the one that was slowest: two that are alike would alternate
_NO_LONGER_READ = 64  # batches of others since its last one: the loop has gone on to another loader
_MOST_LOADERS = 64


class LoaderWaits:
    """The seconds waited for each loader, those of a minute ago counting a third."""

    def __init__(self) -> None:
        self.slowest: int | None = None
        self._waited: dict[int, tuple[int, float]] = {}
        self._others = 0
        """Batches of other loaders since the last one of the slowest."""

    def add(self, loader: int, end_ns: int, seconds: float) -> None:
        """One wait for a batch of it."""
        if len(self._waited) >= _MOST_LOADERS and loader not in self._waited:
            self._waited.clear()
        self._waited[loader] = end_ns, self._seconds(loader, end_ns) + seconds
        self._others = 0 if loader == self.slowest else self._others + 1
        if self.slowest is None or self._others > _NO_LONGER_READ or self._is_slower(loader, end_ns):
            self.slowest, self._others = loader, 0

    def _is_slower(self, loader: int, now_ns: int) -> bool:
        assert self.slowest is not None
        return self._seconds(loader, now_ns) > _CLEARLY * self._seconds(self.slowest, now_ns)

    def _seconds(self, loader: int, now_ns: int) -> float:
        last_ns, seconds = self._waited.get(loader, (now_ns, 0.0))
        return seconds * math.exp(min(0, last_ns - now_ns) / _FADING_NS)
