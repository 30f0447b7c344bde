"""The samples of a part of a recording, and their time axis: seconds from the recording's beginning, and wall time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

from gpuwatch.recording.reader import Recording


def samples_of(recording: Recording, start_ns: int, end_ns: int) -> Iterator[Any]:
    """The standing facts, the samples in the order in which they came, then the findings.

    Facts keep the time they were read at, which may lie before the stretch.
    """
    yield from recording.facts_at(start_ns)
    yield from recording.samples(start_ns, end_ns)
    yield from recording.findings(start_ns, end_ns)


def time_of(sample: Any) -> int | None:
    """When a sample was taken: the end of what it describes, the beginning of what still lasts.

    None for a GPU's gap, which has the number of its step.
    """
    for name in ("time_ns", "end_ns", "start_ns"):
        value = getattr(sample, name, None)
        if value is not None:
            return int(value)
    return None


class Axis:
    """Turns CLOCK_MONOTONIC nanoseconds into what people and tools read.

    Args:
        start_ns: where the recording begins, so that parts exported one by one lie on the same axis.
        wall_time: seconds since the epoch at a moment.
    """

    def __init__(self, start_ns: int, wall_time: Callable[[int], float]) -> None:
        self.start_ns = start_ns
        self._wall_time = wall_time
        self._wall_ns: int | None = None
        self._wall_text = ""

    def seconds(self, time_ns: int) -> float:
        """From the recording's beginning, to the nanosecond."""
        return round((time_ns - self.start_ns) / 1e9, 9)

    def micros(self, time_ns: int) -> float:
        """The same in microseconds, as traces count: not below zero, which Perfetto drops."""
        return max(0, time_ns - self.start_ns) / 1e3

    def wall(self, time_ns: int) -> datetime:
        """The wall time, in UTC."""
        return datetime.fromtimestamp(self._wall_time(time_ns), timezone.utc)

    def wall_text(self, time_ns: int) -> str:
        """The same as ISO 8601 with milliseconds; samples that come together share it."""
        if time_ns != self._wall_ns:
            self._wall_ns = time_ns
            self._wall_text = self.wall(time_ns).isoformat(timespec="milliseconds")
        return self._wall_text
