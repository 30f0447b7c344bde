"""A recording whose minutes are read once, though charts, figures and sums all ask for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from gpuwatch.recording.reader import Recording
from gpuwatch.recording.types import Rollup

_MINUTE_NS = 60_000_000_000


class MinutesOnce(Recording):
    """A day of eight GPUs and their ranks is 300 000 figures, half a second each time they are read."""

    _kept: dict[int, list[Rollup]] | None = None
    _range_ns: tuple[int, int] = (0, 0)
    _metrics: frozenset[str] = frozenset()

    def keep(self, start_ns: int, end_ns: int, metrics: Collection[str]) -> None:
        """Reads these metrics of all minutes that touch (start, end]."""
        kept: dict[int, list[Rollup]] = defaultdict(list)
        for row in super().rollups(start_ns, end_ns, metrics=metrics):
            kept[row.minute_ns].append(row)
        self._kept, self._range_ns, self._metrics = kept, (start_ns, end_ns), frozenset(metrics)

    def rollups(
        self,
        start_ns: int,
        end_ns: int,
        *,
        subjects: Collection[str] | None = None,
        metrics: Collection[str] | None = None,
    ) -> list[Rollup]:
        """As the recording's own, from what is kept where that holds it all."""
        from_ns, to_ns = self._range_ns
        if self._kept is None or metrics is None or start_ns < from_ns or end_ns > to_ns:
            return super().rollups(start_ns, end_ns, subjects=subjects, metrics=metrics)
        if not self._metrics.issuperset(metrics):
            return super().rollups(start_ns, end_ns, subjects=subjects, metrics=metrics)
        return [
            row
            for minute_ns, rows in self._kept.items()
            if start_ns - _MINUTE_NS < minute_ns < end_ns
            for row in rows
            if row.metric in metrics and (subjects is None or row.subject in subjects)
        ]
