"""Stretches of time, given as (start_ns, end_ns), and what the clock on the wall showed at moments of a session.

The clock may have been set and the machine may have slept meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def united(spans: Iterable[Span]) -> list[Span]:
    """The same time as stretches in order that do not touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def clipped(spans: Iterable[Span], start_ns: int, end_ns: int) -> list[Span]:
    """What of the stretches lies between two moments."""
    return [(max(start, start_ns), min(end, end_ns)) for start, end in spans if end > start_ns and start < end_ns]


def without(spans: Iterable[Span], holes: Sequence[Span]) -> list[Span]:
    """What of the stretches lies in none of the holes; both in order and united."""
    left: list[Span] = []
    for start, end in spans:
        for hole_start, hole_end in holes:
            if hole_end <= start or hole_start >= end:
                continue
            if hole_start > start:
                left.append((start, hole_start))
            start = hole_end
        if start < end:
            left.append((start, end))
    return left


def total_ns(spans: Iterable[Span]) -> int:
    """The length of stretches that do not overlap."""
    return sum(end - start for start, end in spans)


def covered_ns(spans: Iterable[Span], start_ns: int, end_ns: int) -> int:
    """How much of the time between two moments the stretches cover together."""
    return total_ns(united(clipped(spans, start_ns, end_ns)))


def outside(times: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """The places of the times, in order, that lie within none of the stretches, in order and united."""
    places = []
    span = 0
    for place, time_ns in enumerate(times):
        while span < len(spans) and spans[span][1] <= time_ns:
            span += 1
        if span == len(spans) or time_ns <= spans[span][0]:
            places.append(place)
    return places


Anchor = tuple[int, float]
"""A moment by CLOCK_MONOTONIC, and what the clock on the wall showed then."""

JUMP_SECONDS = 1.0
"""By how much it is off what the monotonic clock says before that counts as a jump."""
_MOST_ANCHORS = 1_000


def wall_time_at(anchors: Sequence[Anchor], time_ns: int) -> float:
    """What it showed at a moment; before the first anchor, what it must have shown if it did not jump."""
    place = bisect_right(anchors, time_ns, key=lambda anchor: anchor[0]) - 1
    at_ns, wall_time = anchors[max(0, place)]
    return wall_time + (time_ns - at_ns) / 1e9


class WallTimes:
    """Follows the clock; it gets its time some times a second.

    Args:
        anchors: what is known already, in order.
    """

    def __init__(self, anchors: Sequence[Anchor] = ()) -> None:
        self.anchors: tuple[Anchor, ...] = tuple(anchors)
        """One for each jump, the newest of a thousand."""
        self._seen_ns: int | None = None

    def see(self, time_ns: int, wall_time: float) -> None:
        """It shows this at that moment.

        A jump is put right behind the moment before: what happened in between came after the machine woke up.
        """
        before_ns, self._seen_ns = self._seen_ns, time_ns
        if self.anchors and abs(wall_time_at(self.anchors, time_ns) - wall_time) <= JUMP_SECONDS:
            return
        at_ns = time_ns if before_ns is None else min(before_ns + 1, time_ns)
        if not self.anchors or at_ns > self.anchors[-1][0]:
            anchor = (at_ns, wall_time - (time_ns - at_ns) / 1e9)
            self.anchors = (*self.anchors[1 - _MOST_ANCHORS :], anchor)
