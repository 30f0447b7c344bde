"""What the clock on the wall showed at moments of a session, across a clock that was set and a machine that slept."""

from __future__ import annotations

from bisect import bisect_right

JUMP_SECONDS = 1.0
"""By how much it is off what the monotonic clock says before that counts as a jump."""


class WallTimes:
    """Follows the clock; it is told once a second or so what it shows."""

    def __init__(self) -> None:
        self._anchors: list[tuple[int, float]] = []

    def told(self, time_ns: int, wall_time: float) -> None:
        """It shows this at that moment."""
        if not self._anchors or abs(self.at(time_ns) - wall_time) > JUMP_SECONDS:
            self._anchors.append((time_ns, wall_time))

    def at(self, time_ns: int) -> float:
        """What it showed then; before it was first told, what it must have shown if it did not jump."""
        place = bisect_right(self._anchors, time_ns, key=lambda anchor: anchor[0]) - 1
        at_ns, wall_time = self._anchors[max(0, place)]
        return wall_time + (time_ns - at_ns) / 1e9
