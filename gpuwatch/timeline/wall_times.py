"""What the clock on the wall showed at moments of a session, across a clock that was set and a machine that slept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

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
