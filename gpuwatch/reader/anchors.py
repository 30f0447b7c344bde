"""Frames below which a DataLoader iterator's `__next__` was seen, for loops that keep the iterator in an attribute."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.reader.types import Frame

_DEEPEST = 8  # frames from __next__ outward: Lightning's loop stands 5 below its fetcher's
_MOST = 256


class Anchors:
    """Remembers which frames an iterator was advanced from.

    The same frames also lie below other loops: main() below both training and evaluation. So the iterator that
    was advanced nearest to a frame is the one it stands for, and of two as near the one seen last.
    """

    def __init__(self) -> None:
        self._nearest: dict[tuple[int, int], tuple[int, int]] = {}

    def remember(self, iterator: int, frames: Sequence[Frame]) -> None:
        """Notes the frames that the iterator is being advanced from, the nearest first."""
        if len(self._nearest) > _MOST:
            self._nearest.clear()
        for distance, frame in enumerate(frames[:_DEEPEST]):
            key = (frame.address, frame.code.address)
            known = self._nearest.get(key)
            if known is None or known[1] == iterator or distance <= known[0]:
                self._nearest[key] = (distance, iterator)

    def find(self, frames: Sequence[Frame], start: int) -> tuple[int, int] | None:
        """The index of the innermost frame from `start` on that an iterator was advanced from, and the iterator."""
        for index, frame in enumerate(frames[start:], start):
            known = self._nearest.get((frame.address, frame.code.address))
            if known is not None:
                return index, known[1]
        return None
